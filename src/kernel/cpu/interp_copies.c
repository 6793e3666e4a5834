/* Programs of elements that only move memory (interp_parts.h): one load whose place follows from indices, one store of what it gives.
   The place is a sum of what stands still along the last dim, of what is the same in every row (columns), and of one index that is
   read from memory at most: flips, pads, rolls, index_select, gather and take. The still terms are calculated for many rows at once,
   as interp_still.c does, those of columns once for all rows, and then each row is a few copies, forwards or backwards, or a loop
   over indices. What a plain load gives goes line by line. Windows of whole places (constant pads) are such columns, too, with a value for what lies outside, and so are
   triangles, whose columns end or begin somewhere else in each row. Of a diagonal each row has one column at most (spots). */
#include <stddef.h>

#include "device/error_record.h"
#include "kernel/cpu/interp_parts.h"

typedef rp__interp run;
typedef rp__interp_reg reg;

enum {
    TERMS = 8,      /* of each kind */
    SHORT = 4,      /* rows shorter than this are not worth it */
    COLUMNS = 8192, /* at once */
    PIECES = 64,
    RUN = 6 /* columns that follow each other, from which on they are a piece of their own */
};
enum { ROW = 1, COLUMN = 2 }; /* what a register varies along */
#define OUTSIDE INT64_MIN     /* place of a column */

typedef enum way { FORWARDS, BACKWARDS, REPEATED, PICKED, FILLED } way;
typedef struct piece {
    way way;
    int64_t begin, n, at; /* columns; place of the first */
} piece;

typedef struct plan {
    const rp__insn *load;
    unsigned from, to, size;
    uint64_t fill; /* storage bits of what lies outside */
    unsigned n_still, n_column;
    uint16_t still[TERMS], column[TERMS];
    bool indexed, wraps;
    unsigned index, index_size; /* access of the index */
    bool triangle, lower;       /* stored where the column less the row is at most, or at least, a number */
    uint16_t diagonal;          /* uniform register of that */
    unsigned first_column;      /* the column's access, an iota */
    bool spots; /* stored in one column, that whose number less `lead` is `spot`, where guards are true */
    uint16_t spot, lead, guard[TERMS], other; /* other: what the rest has, if that is no uniform register */
    unsigned n_guard;
    uint16_t bound, times; /* uniform registers; times: RP__NO_VAL is 1 */
    uint8_t used[RP__INTERP_PARTED];
    uint8_t varies[RP__DAG_MAX_NODES];
    uint16_t maker[RP__DAG_MAX_NODES]; /* instruction of a register */
} plan;

/* ---- lines: a program that loads and stores, where both run on along the last dims */

/* Short ones as they are most often, without a call. */
static inline void copy_run(char *d, const char *s, int64_t bytes) {
    typedef uint64_t vector __attribute__((vector_size(16), may_alias, aligned(1)));
    if (bytes > 512) {
        memcpy(d, s, (size_t)bytes);
    } else if (bytes >= 16) {
        for (int64_t i = 0; i + 16 <= bytes; i += 16)
            *(vector *)(void *)(d + i) = *(const vector *)(const void *)(s + i);
        *(vector *)(void *)(d + bytes - 16) = *(const vector *)(const void *)(s + bytes - 16);
    } else if (bytes >= 8) {
        memcpy(d, s, 8);
        memcpy(d + bytes - 8, s + bytes - 8, 8);
    } else {
        for (int64_t i = 0; i < bytes; i++) d[i] = s[i];
    }
}
/* `count` lines. Of the most frequent lengths each is a move or two: two that overlap, where it is no power of two. */
static void copy_lines(char *d, int64_t d_step, const char *s, int64_t s_step, int64_t bytes, int64_t count) {
#define LINES(MOVE)                                                                                                    \
    for (; count > 0; count--, d += d_step, s += s_step) MOVE
#define ENDS(T)                                                                                                        \
    do {                                                                                                               \
        T begin, end; /* both are read before either is written */                                                     \
        memcpy(&begin, s, sizeof(T));                                                                                  \
        memcpy(&end, s + bytes - sizeof(T), sizeof(T));                                                                \
        memcpy(d, &begin, sizeof(T));                                                                                  \
        memcpy(d + bytes - sizeof(T), &end, sizeof(T));                                                                \
    } while (0)
    typedef struct {
        uint64_t v[2];
    } two;
    switch (bytes) {
    case 1: LINES(memcpy(d, s, 1)); break;
    case 2: LINES(memcpy(d, s, 2)); break;
    case 3: LINES(ENDS(uint16_t)); break;
    case 4: LINES(memcpy(d, s, 4)); break;
    case 5:
    case 6:
    case 7: LINES(ENDS(uint32_t)); break;
    case 8: LINES(memcpy(d, s, 8)); break;
    case 16: LINES(memcpy(d, s, 16)); break;
    case 32: LINES(memcpy(d, s, 32)); break;
    case 64: LINES(memcpy(d, s, 64)); break;
    default:
        if (bytes < 16)
            LINES(ENDS(uint64_t));
        else if (bytes < 32)
            LINES(ENDS(two));
        else
            LINES(copy_run(d, s, bytes));
    }
#undef ENDS
#undef LINES
}
/* Elements [first, last); false: this is no such program or space, and nothing was done. */
static bool by_lines(const run *r, int64_t first, int64_t last) {
    const rp__program *p = r->p;
    if (!p->moves || !r->dims) return false;
    const unsigned from = p->insns[p->element[0].begin].access, to = p->stores[0].access;
    const int64_t *const s_stride = r->stride + (size_t)from * r->dims, *const d_stride =
                                                                            r->stride + (size_t)to * r->dims;
    unsigned outer = r->dims;
    int64_t n = 1;
    while (outer && (r->extent[outer - 1] == 1 || (s_stride[outer - 1] == n && d_stride[outer - 1] == n)))
        n *= r->extent[--outer];
    if (n < 2) return false;
    const int64_t size = p->access_size[to];
    const int64_t many = outer ? r->extent[outer - 1] : 1;
    const int64_t s_step = outer ? s_stride[outer - 1] * size : 0, d_step = outer ? d_stride[outer - 1] * size : 0;
    for (int64_t at = first; at < last;) {
        const int64_t line = at / n, begin = at % n;
        const int64_t whole = begin ? 0 : (last - at) / n, left = many - line % many;
        const int64_t count = !whole ? 1 : whole < left ? whole : left;
        const int64_t m = whole ? n : n - begin < last - at ? n - begin : last - at;
        copy_lines(
            (char *)(uintptr_t)r->address[to] + (rp__interp_offset(r, to, 0, outer, line) + begin) * size, d_step,
            (const char *)(uintptr_t)r->address[from] + (rp__interp_offset(r, from, 0, outer, line) + begin) * size,
            s_step, m * size, count);
        at += count * m;
    }
    return true;
}

/* The same where the last dim of the result is short and the one before it runs on in memory (pixel_shuffle, small transposes): those two are turned.
   Units are all of both; of one that the slice cuts each element is moved alone. */
static bool by_turns(const run *r, int64_t first, int64_t last) {
    enum { LONGEST = 16, LEAST = 8 };
    const rp__program *p = r->p;
    if (!p->moves || r->dims < 2) return false;
    const unsigned from = p->insns[p->element[0].begin].access, to = p->stores[0].access, inner = r->dims - 2;
    const int64_t *const s_stride = r->stride + (size_t)from * r->dims + inner,
                         *const d_stride = r->stride + (size_t)to * r->dims + inner, *const extent = r->extent + inner;
    const int64_t size = p->access_size[to], unit = extent[0] * extent[1];
    if (s_stride[0] != 1 || d_stride[1] != 1 || d_stride[0] != extent[1] || extent[1] > LONGEST || extent[0] < LEAST)
        return false;
    for (int64_t at = first; at < last;) {
        const int64_t number = at / unit, begin = at % unit, left = last - number * unit,
                      end = left < unit ? left : unit;
        char *const d = (char *)(uintptr_t)r->address[to] + rp__interp_offset(r, to, 0, inner, number) * size;
        const char *const s =
            (const char *)(uintptr_t)r->address[from] + rp__interp_offset(r, from, 0, inner, number) * size;
        if (end - begin == unit) {
            const rp__tile_call t = {
                .d = d, .as = extent[1], .a = s, .n = extent[1], .imm = s_stride[1], .bs = extent[0]};
            p->tiles->transpose[rp__interp_log2((unsigned)size)](&t);
        } else {
            for (int64_t i = begin; i < end; i++)
                copy_lines(d + i * size, 0, s + (i / extent[1] + i % extent[1] * s_stride[1]) * size, 0, size, 1);
        }
        at += end - begin;
    }
    return true;
}

/* ---- which programs */

static const rp__insn *made_by(const run *r, const plan *x, uint16_t v) {
    return x->maker[v] ? &r->p->insns[x->maker[v] - 1u] : NULL;
}
static bool is_op(const run *r, const rp__insn *i, rp__prim op, unsigned type) {
    return i && i->kind == RP__INSN_OP && i->fn == r->p->tiles->op[op][type];
}
/* Marks an instruction that only the rows themselves run; false: it is used twice. */
static bool take(const run *r, plan *x, const rp__insn *i) {
    const uint32_t k = (uint32_t)(i - r->p->insns);
    if (x->used[k - r->p->element[0].begin]) return false;
    x->used[k - r->p->element[0].begin] = 1;
    return true;
}
static bool uniform(const plan *x, uint16_t v) { return v != RP__NO_VAL && !x->maker[v]; }

/* times * check(index), of an index that is read as it is. */
static bool find_index(const run *r, plan *x, uint16_t v) {
    const rp__insn *i = made_by(r, x, v);
    x->times = RP__NO_VAL;
    if (is_op(r, i, RP__MUL, RP__TILE_I64)) {
        const bool first = uniform(x, i->a);
        if (!first && !uniform(x, i->b)) return false;
        x->times = first ? i->a : i->b;
        if (!take(r, x, i)) return false;
        i = made_by(r, x, first ? i->b : i->a);
    }
    if (!is_op(r, i, RP__CHECK_INDEX, RP__TILE_I64) || !uniform(x, i->b) || !take(r, x, i)) return false;
    x->bound = i->b;
    x->wraps = i->imm != 0;
    i = made_by(r, x, i->a);
    x->index_size = 8;
    if (i && i->kind == RP__INSN_OP && i->fn == r->p->tiles->cast[RP__TILE_I32][RP__TILE_I64]) {
        if (!take(r, x, i)) return false;
        i = made_by(r, x, i->a);
        x->index_size = 4;
    }
    if (!i || i->kind != RP__INSN_LOAD || i->a != RP__NO_VAL || i->b != RP__NO_VAL) return false;
    x->index = i->access;
    x->indexed = r->p->access_size[x->index] == x->index_size && !r->p->access_load[x->index] && take(r, x, i);
    return x->indexed;
}
/* The terms of a place. */
static bool find_terms(const run *r, plan *x, uint16_t v) {
    const unsigned varies = x->varies[v];
    if (!(varies & COLUMN)) {
        x->still[x->n_still++] = v;
        return x->n_still < TERMS;
    }
    if (!(varies & ROW) && r->n_outer) {
        x->column[x->n_column++] = v;
        return x->n_column < TERMS && made_by(r, x, v)->kind == RP__INSN_OP;
    }
    const rp__insn *i = made_by(r, x, v);
    if (varies & ROW && is_op(r, i, RP__ADD, RP__TILE_I64))
        return take(r, x, i) && find_terms(r, x, i->a) && find_terms(r, x, i->b);
    if (varies & ROW) return !x->indexed && find_index(r, x, v);
    /* One row: an index that nothing else reads, else a column. */
    uint8_t used[RP__INTERP_PARTED];
    memcpy(used, x->used, sizeof used);
    if (!x->indexed && find_index(r, x, v)) return true;
    memcpy(x->used, used, sizeof used);
    x->column[x->n_column++] = v;
    return x->n_column < TERMS && i->kind == RP__INSN_OP;
}

static bool whole_windows(const run *r, unsigned access) {
    for (unsigned k = 0; k < r->p->access_windows[access]; k++) {
        const int64_t *w = r->windows + (size_t)(r->p->first_window[access] + k) * (4 + r->dims);
        if (w[3] != 1) return false;
        for (unsigned d = 0; d < r->n_outer && w[4 + r->n_outer]; d++) {
            if (w[4 + d] && r->extent[d] > 1) return false;
        }
    }
    return true;
}
static unsigned varies_of(const run *r, const plan *x, const rp__insn *i) {
    unsigned v = 0;
    const uint16_t operands[3] = {i->a, i->b, i->c};
    if (i->kind == RP__INSN_LOAD || i->kind == RP__INSN_IOTA) {
        const int64_t *stride = r->stride + (size_t)i->access * r->dims;
        for (unsigned d = 0; d < r->dims; d++) v |= !stride[d] ? 0 : d < r->n_outer ? ROW : COLUMN;
    }
    for (int k = 0; k < 3; k++) v |= operands[k] == RP__NO_VAL ? 0 : x->varies[operands[k]];
    return v;
}
/* Columns less row (a still term) beside a number. */
static bool find_triangle(const run *r, plan *x, const rp__insn *compare) {
    if (!is_op(r, compare, RP__LE, RP__TILE_I64) || uniform(x, compare->a) == uniform(x, compare->b)) return false;
    x->lower = uniform(x, compare->b);
    x->diagonal = x->lower ? compare->b : compare->a;
    const rp__insn *on = made_by(r, x, x->lower ? compare->a : compare->b);
    if (!is_op(r, on, RP__SUB, RP__TILE_I64) || uniform(x, on->a)) return false;
    const rp__insn *column = made_by(r, x, on->a);
    if (column->kind != RP__INSN_IOTA || x->varies[on->a] != COLUMN || x->varies[on->b] & COLUMN ||
        r->stride[column->access * r->dims + r->n_outer] != 1)
        return false;
    x->first_column = column->access;
    x->still[x->n_still++] = on->b;
    x->triangle = true;
    return take(r, x, compare) && take(r, x, on);
}
/* A column that is what stands still, beside conditions that stand still. */
static bool find_spots(const run *r, plan *x, uint16_t v) {
    if (!(x->varies[v] & COLUMN)) {
        if (x->n_guard == TERMS) return false;
        x->guard[x->n_guard++] = v;
        return true;
    }
    const rp__insn *i = made_by(r, x, v);
    if (is_op(r, i, RP__AND, RP__TILE_U8)) return take(r, x, i) && find_spots(r, x, i->a) && find_spots(r, x, i->b);
    if (x->spots || !is_op(r, i, RP__EQ, RP__TILE_I64) || !take(r, x, i)) return false;
    const bool first = (x->varies[i->a] & COLUMN) != 0;
    const rp__insn *column = made_by(r, x, first ? i->a : i->b);
    x->spots = true;
    x->spot = first ? i->b : i->a;
    x->lead = RP__NO_VAL;
    if (is_op(r, column, RP__SUB, RP__TILE_I64)) {
        if (!uniform(x, column->b) || !take(r, x, column)) return false;
        x->lead = column->b;
        column = made_by(r, x, column->a);
    }
    if (x->varies[x->spot] & COLUMN || !column || column->kind != RP__INSN_IOTA || x->varies[column->d] != COLUMN)
        return false;
    x->first_column = column->access;
    return r->stride[column->access * r->dims + r->n_outer] == 1;
}
/* What the store stores: the load, or it where its windows are inside and a value else. */
static bool find_load(run *r, plan *x, uint16_t value) {
    const rp__program *p = r->p;
    const rp__insn *i = made_by(r, x, value), *inside = NULL;
    uint16_t other = RP__NO_VAL, where = RP__NO_VAL;
    x->other = RP__NO_VAL;
    if (i && i->kind == RP__INSN_OP && i->fn == p->tiles->op[RP__WHERE][i->type]) {
        inside = made_by(r, x, i->a);
        other = i->c;
        const bool spots = inside && inside->kind == RP__INSN_OP && !is_op(r, inside, RP__LE, RP__TILE_I64);
        if (!inside || !take(r, x, i)) return false;
        if (spots && !uniform(x, other)) {
            if (x->varies[other]) return false;
            x->other = other;
            other = RP__NO_VAL;
        } else if (!uniform(x, other)) {
            return false;
        }
        if (inside->kind == RP__INSN_INSIDE ? !take(r, x, inside)
            : spots                         ? !find_spots(r, x, i->a) || !x->spots
                                            : !find_triangle(r, x, inside))
            return false;
        where = i->a;
        i = made_by(r, x, i->b);
    }
    if (!i || i->kind != RP__INSN_LOAD || i->b != (x->spots ? where : RP__NO_VAL) || !take(r, x, i)) return false;
    const bool windows = p->access_windows[i->access] > 0;
    if (x->spots) {
        if (windows || r->stride[i->access * r->dims + r->n_outer] || (i->a != RP__NO_VAL && x->varies[i->a] & COLUMN))
            return false;
    } else if (x->triangle) {
        if (windows || i->a != RP__NO_VAL || r->stride[i->access * r->dims + r->n_outer] != 1) return false;
    } else if (windows ? i->a != RP__NO_VAL || !whole_windows(r, i->access) : i->a == RP__NO_VAL || inside)
        return false;
    if (inside && !x->triangle && !x->spots && inside->access != i->access) return false;
    x->load = i;
    x->from = i->access;
    x->fill = other; /* a register, so far */
    return windows || x->triangle || i->a == RP__NO_VAL || find_terms(r, x, i->a);
}
static bool find_plan(run *r, plan *x) {
    const rp__program *p = r->p;
    const struct rp__segment all = p->n_phases == 1 ? p->element[0] : (struct rp__segment){0, 0};
    if (p->n_stores != 1 || p->n_scans || p->n_reductions || !r->dims || r->extent[r->dims - 1] < SHORT ||
        all.end - all.begin > RP__INTERP_PARTED || all.end == all.begin)
        return false;
    const rp__program_store *st = &p->stores[0];
    r->n_outer = r->dims - 1;
    if (st->offset != RP__NO_VAL || st->predicate != RP__NO_VAL || st->mode != RP__STORE_SET ||
        r->stride[st->access * r->dims + r->n_outer] != 1)
        return false;
    memset(x, 0, offsetof(plan, varies));
    memset(x->varies, 0, p->n_regs);
    memset(x->maker, 0, p->n_regs * sizeof *x->maker);
    for (uint32_t k = all.begin; k < all.end; k++) {
        const rp__insn *i = &p->insns[k];
        if (i->kind == RP__INSN_STORE) continue;
        if (i->kind > RP__INSN_INSIDE) return false;
        x->varies[i->d] =
            (uint8_t)(i->kind == RP__INSN_INSIDE || (i->kind == RP__INSN_LOAD && p->access_windows[i->access])
                          ? ROW | COLUMN
                          : varies_of(r, x, i));
        if (i->kind == RP__INSN_IOTA && p->access_windows[i->access]) return false;
        x->maker[i->d] = (uint16_t)(k + 1);
    }
    if (!find_load(r, x, st->value)) return false;
    x->to = st->access;
    x->size = st->size;
    if (p->access_size[x->from] != st->size || p->access_load[x->from] != p->access_narrow[x->to]) return false;
    unsigned n_still = 0, n_column = 0;
    for (uint32_t k = all.begin; k < all.end; k++) {
        const rp__insn *i = &p->insns[k];
        uint8_t *part = &r->moves[k - all.begin];
        *part = RP__INTERP_MOVING;
        if (i->kind == RP__INSN_STORE || x->used[k - all.begin]) continue;
        const unsigned v = x->varies[i->d];
        const uint16_t operands[3] = {i->a, i->b, i->c};
        for (int o = 0; o < 3; o++) { /* what rows run themselves is nobody else's */
            if (operands[o] != RP__NO_VAL && x->maker[operands[o]] && x->used[x->maker[operands[o]] - 1u - all.begin])
                return false;
        }
        if (v == (ROW | COLUMN)) return false;
        *part = v == ROW ? RP__INTERP_STILL : v == COLUMN ? RP__INTERP_COLUMN : RP__INTERP_STILL | RP__INTERP_COLUMN;
        n_still += !!(*part & RP__INTERP_STILL);
        n_column += !!(*part & RP__INTERP_COLUMN);
    }
    if (n_still > RP__INTERP_STILL_VALUES || n_column > RP__INTERP_STILL_VALUES) return false;
    /* Rows as they lie are interp_still.c's. */
    return p->access_windows[x->from] || x->triangle || x->spots || x->n_column || x->indexed ||
           r->stride[x->from * r->dims + r->n_outer] != 1;
}

/* ---- columns */

/* Runs the instructions of a part over elements [start, start + n) of dims [d0, d1). */
static void run_part(run *r, rp__interp_part part, unsigned d0, unsigned d1, int64_t start, int64_t n) {
    r->part = (uint8_t)part;
    r->d0 = d0;
    r->d1 = d1;
    rp__interp_forms(r);
    memset(r->direct, 0, sizeof r->direct);
    for (unsigned a = 0; a < r->p->n_accesses; a++) r->base[a] = (char *)(uintptr_t)r->address[a];
    r->pos = start;
    r->apart = r->kept;
    rp__interp_element(r, 0, n);
}
static int64_t term(const run *r, uint16_t v, int64_t k) {
    int64_t t;
    memcpy(&t, r->regs[v].p + k * r->regs[v].step * 8, 8);
    return t;
}
/* The places of columns [c0, c1), beside what their row adds. */
static void find_columns(run *r, const plan *x, int64_t c0, int64_t c1, int64_t *col) {
    const int64_t step = r->stride[x->from * r->dims + r->n_outer];
    for (int64_t c = c0; c < c1; c++) col[c - c0] = c * step;
    for (int64_t c = c0; c < c1 && x->n_column; c += RP__INTERP_STILL_ROWS) {
        const int64_t n = c1 - c < RP__INTERP_STILL_ROWS ? c1 - c : RP__INTERP_STILL_ROWS;
        run_part(r, RP__INTERP_COLUMN, r->n_outer, r->dims, c, n);
        for (unsigned t = 0; t < x->n_column; t++) {
            for (int64_t k = 0; k < n; k++) col[c - c0 + k] += term(r, x->column[t], k);
        }
    }
    for (unsigned k = 0; k < r->p->access_windows[x->from]; k++) {
        const int64_t *w = r->windows + (size_t)(r->p->first_window[x->from] + k) * (4 + r->dims);
        const int64_t factor = w[4 + r->n_outer];
        if (!factor) continue;
        for (int64_t c = c0; c < c1; c++) {
            const int64_t at = c * factor - w[2];
            if ((uint64_t)at >= (uint64_t)w[0])
                col[c - c0] = OUTSIDE;
            else if (col[c - c0] != OUTSIDE)
                col[c - c0] += at * w[1];
        }
    }
}
/* Columns that follow col[k] in one step of 1, -1 or 0, or all outside. */
static int64_t run_from(const int64_t *col, int64_t k, int64_t n, way *how) {
    int64_t e = k + 1;
    if (col[k] == OUTSIDE) {
        while (e < n && col[e] == OUTSIDE) e++;
        *how = FILLED;
        return e - k;
    }
    *how = PICKED;
    if (e == n || col[e] == OUTSIDE) return 1;
    const int64_t step = col[e] - col[k];
    if (step > 1 || step < -1) return 1;
    while (e < n && col[e] != OUTSIDE && col[e] - col[e - 1] == step) e++;
    *how = step > 0 ? FORWARDS : step < 0 ? BACKWARDS : REPEATED;
    return e - k;
}
/* false: they are too many. */
static bool find_pieces(const int64_t *col, int64_t n, piece *pieces, unsigned *count) {
    *count = 0;
    for (int64_t k = 0, m; k < n; k += m) {
        way how;
        m = run_from(col, k, n, &how);
        if (m < RUN && how != FILLED) how = PICKED;
        piece *last = *count ? &pieces[*count - 1] : NULL;
        if (last && how == PICKED && last->way == PICKED) {
            last->n += m;
            continue;
        }
        if (*count == PIECES) return false;
        pieces[(*count)++] = (piece){how, k, m, col[k]};
    }
    return true;
}

/* ---- rows */

/* The rows along the last outer dim from one on: offsets of accesses in elements, places of the windows that rows have. */
typedef struct stretch {
    int64_t from, to, index, from_step, to_step, index_step;
    unsigned n;
    struct {
        int64_t at, step, size, stride;
    } window[RP__ACCESS_WINDOWS];
} stretch;
static int64_t row_step(const run *r, const int64_t *stride) { return r->n_outer ? stride[r->n_outer - 1] : 0; }
/* What changes from stretch to stretch. */
static void stretch_at(stretch *w, const run *r, const plan *x, int64_t row) {
    const int64_t *windows = r->windows + (size_t)r->p->first_window[x->from] * (4 + r->dims);
    w->from = rp__interp_offset(r, x->from, 0, r->n_outer, row);
    w->to = rp__interp_offset(r, x->to, 0, r->n_outer, row);
    w->index = x->indexed ? rp__interp_offset(r, x->index, 0, r->n_outer, row) : 0;
    w->n = 0;
    for (unsigned k = 0; k < r->p->access_windows[x->from]; k++) {
        const int64_t *own = windows + (size_t)k * (4 + r->dims);
        if (own[4 + r->n_outer]) continue; /* the columns have it */
        w->window[w->n].at = rp__interp_along(r, own + 4, 0, r->n_outer, row) - own[2];
        w->window[w->n].step = row_step(r, own + 4);
        w->window[w->n].size = own[0];
        w->window[w->n++].stride = own[1];
    }
}
static void stretch_begin(stretch *w, const run *r, const plan *x) {
    w->from_step = row_step(r, r->stride + x->from * r->dims);
    w->to_step = row_step(r, r->stride + x->to * r->dims);
    w->index_step = x->indexed ? row_step(r, r->stride + x->index * r->dims) : 0;
}
/* Where the row's memory begins; false: it lies outside. Goes on to the next. */
static inline bool stretch_next(stretch *w, int64_t *from, int64_t *to, int64_t *index) {
    bool in = true;
    *from = w->from;
    *to = w->to;
    *index = w->index;
    w->from += w->from_step;
    w->to += w->to_step;
    w->index += w->index_step;
    for (unsigned k = 0; k < w->n; k++) {
        const int64_t at = w->window[k].at;
        in = in && (uint64_t)at < (uint64_t)w->window[k].size;
        *from += at * w->window[k].stride;
        w->window[k].at += w->window[k].step;
    }
    return in;
}

static int64_t index_at(const char *index, unsigned size, int64_t k) {
    int32_t narrow;
    int64_t at;
    if (size == 8) {
        memcpy(&at, index + 8 * k, 8);
        return at;
    }
    memcpy(&narrow, index + 4 * k, 4);
    return narrow;
}
/* Are n indices that lie one behind the other below the bound, and none below 0? By the sign of what is left: of an index that is not
   negative the distance to the last place fits. */
static inline bool all_inside(const char *index, size_t size, int64_t bound, int64_t n) {
    typedef uint64_t wide __attribute__((vector_size(16), may_alias, aligned(1)));
    typedef uint32_t narrow __attribute__((vector_size(16), may_alias, aligned(1)));
    const int64_t most = size == 4 && bound - 1 > INT32_MAX ? INT32_MAX : bound - 1;
    int64_t k = 0;
    if (size == 8) {
        const wide last = {(uint64_t)most, (uint64_t)most};
        wide bad = {0, 0};
        for (; k + 2 <= n; k += 2) {
            const wide at = *(const wide *)(const void *)(index + 8 * k);
            bad |= at | (last - at);
        }
        if ((bad[0] | bad[1]) >> 63) return false;
    } else {
        const uint32_t m = (uint32_t)most;
        const narrow last = {m, m, m, m};
        narrow bad = {0, 0, 0, 0};
        for (; k + 4 <= n; k += 4) {
            const narrow at = *(const narrow *)(const void *)(index + 4 * k);
            bad |= at | (last - at);
        }
        if ((bad[0] | bad[1] | bad[2] | bad[3]) >> 31) return false;
    }
    for (; k < n; k++) {
        const int64_t at = index_at(index, (unsigned)size, k);
        if (at < 0 || at > most) return false;
    }
    return true;
}

#define ROWS_OF(bits)                                                                                                  \
    static void pieces_##bits(const run *r, const plan *x, const piece *pieces, unsigned n, const int64_t *col,        \
                              char *to, const char *from) {                                                            \
        uint##bits##_t *d = (uint##bits##_t *)(void *)to;                                                              \
        const uint##bits##_t *s = (const uint##bits##_t *)(const void *)from;                                          \
        for (unsigned k = 0; k < n; k++) {                                                                             \
            const piece *c = &pieces[k];                                                                               \
            const int64_t begin = c->begin, end = begin + c->n;                                                        \
            switch (c->way) {                                                                                          \
            case FORWARDS: copy_run((char *)(d + begin), (const char *)(s + c->at), c->n *(int64_t)sizeof *d); break;  \
            case BACKWARDS: {                                                                                          \
                rp__tile_call t = {.d = d + begin, .a = s + c->at, .n = c->n, .imm = -1};                              \
                r->p->tiles->gather[rp__interp_log2(bits / 8)](&t);                                                    \
                break;                                                                                                 \
            }                                                                                                          \
            case REPEATED: {                                                                                           \
                const uint##bits##_t v = s[c->at];                                                                     \
                for (int64_t j = begin; j < end; j++) d[j] = v;                                                        \
                break;                                                                                                 \
            }                                                                                                          \
            case PICKED:                                                                                               \
                for (int64_t j = begin; j < end; j++) d[j] = s[col[j]];                                                \
                break;                                                                                                 \
            case FILLED:                                                                                               \
                d[begin] = d[end - 1] = (uint##bits##_t)x->fill;                                                       \
                for (int64_t j = begin + 1; j < end - 1; j++) d[j] = (uint##bits##_t)x->fill;                          \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void some_##bits(const plan *x, const int64_t *col, char *to, const char *from, int64_t lo, int64_t hi) {   \
        uint##bits##_t *d = (uint##bits##_t *)(void *)to;                                                              \
        const uint##bits##_t *s = (const uint##bits##_t *)(const void *)from;                                          \
        for (int64_t j = lo; j < hi; j++) d[j] = s && col[j] != OUTSIDE ? s[col[j]] : (uint##bits##_t)x->fill;         \
    }                                                                                                                  \
    static bool at_32_##bits(const int64_t *col, char *to, const char *from, const char *index, int64_t step,          \
                             int64_t times, int64_t bound, int64_t wrap, int64_t n) {                                  \
        INDEXED(bits, int32_t)                                                                                         \
    }                                                                                                                  \
    static bool at_64_##bits(const int64_t *col, char *to, const char *from, const char *index, int64_t step,          \
                             int64_t times, int64_t bound, int64_t wrap, int64_t n) {                                  \
        INDEXED(bits, int64_t)                                                                                         \
    }
/* A wrong index reads place 0 and is told of. col: NULL: 0 for all. */
#define INDEXED_BY(STEP, PLACE)                                                                                        \
    for (int64_t j = 0; j < n; j++) {                                                                                  \
        const int64_t given = i[j * (STEP)];                                                                           \
        const uint64_t at = (uint64_t)(given + (given < 0 ? wrap : 0));                                                \
        wrong |= at >= (uint64_t)bound;                                                                                \
        d[j] = s[PLACE];                                                                                               \
    }
#define RIGHT (int64_t)(at < (uint64_t)bound ? at : 0)
#define INDEXED(bits, I)                                                                                               \
    uint##bits##_t *d = (uint##bits##_t *)(void *)to;                                                                  \
    const uint##bits##_t *s = (const uint##bits##_t *)(const void *)from;                                              \
    const I *i = (const I *)(const void *)index;                                                                       \
    bool wrong = false;                                                                                                \
    if (!col && step == 1 && times == 1 && !wrap) {                                                                    \
        if (!all_inside(index, sizeof(I), bound, n)) return false;                                                     \
        _Pragma("GCC unroll 4") for (int64_t j = 0; j < n; j++) d[j] = s[i[j]];                                        \
    } else if (!col) {                                                                                                 \
        INDEXED_BY(step, RIGHT *times)                                                                                 \
    } else {                                                                                                           \
        INDEXED_BY(step, col[j] + RIGHT * times)                                                                       \
    }                                                                                                                  \
    return !wrong;
ROWS_OF(8)
ROWS_OF(16)
ROWS_OF(32)
ROWS_OF(64)
typedef void pieces_fn(const run *, const plan *, const piece *, unsigned, const int64_t *, char *, const char *);
typedef void some_fn(const plan *, const int64_t *, char *, const char *, int64_t, int64_t);
typedef bool at_fn(const int64_t *, char *, const char *, const char *, int64_t, int64_t, int64_t, int64_t, int64_t);
static pieces_fn *const pieces_of[4] = {pieces_8, pieces_16, pieces_32, pieces_64};
static some_fn *const some_of[4] = {some_8, some_16, some_32, some_64};
static at_fn *const at_of[2][4] = {{at_32_8, at_32_16, at_32_32, at_32_64}, {at_64_8, at_64_16, at_64_32, at_64_64}};
/* Columns [lo, hi) of a row by their indices. Where one is wrong each is looked at once more. */
static void index_row(const run *r, const plan *x, const int64_t *col, char *to, const char *from, const char *index,
                      int64_t bound, int64_t times, int64_t lo, int64_t hi) {
    const int64_t step = r->stride[x->index * r->dims + r->n_outer];
    index += lo * step * x->index_size;
    to += lo * x->size;
    if (col) col += lo;
    const unsigned kind = rp__interp_log2(x->size);
    if (at_of[x->index_size == 8][kind](col, to, from, index, step, times, bound, x->wraps ? bound : 0, hi - lo))
        return;
    for (int64_t k = 0; k < hi - lo; k++) {
        const int64_t given = index_at(index, x->index_size, k * step);
        int64_t at = x->wraps && given < 0 ? given + bound : given;
        if (at < 0 || at >= bound) {
            rp__error_record_put(r->env.errors, r->env.tag, given, bound);
            at = 0;
        }
        memcpy(to + k * x->size, from + ((col ? col[k] : 0) + at * times) * (int64_t)x->size, x->size);
    }
}

/* What lies outside, in storage. */
static uint64_t stored_bits(const run *r, const plan *x, const char *value) {
    const unsigned narrow = r->p->access_narrow[x->to];
    _Alignas(64) char stored[64];
    if (!narrow) return rp__interp_peek(value, x->size);
    rp__tile_call t = {.d = stored, .a = value, .as = 0, .n = 1};
    r->p->tiles->store_narrow[narrow - 1](&t);
    return rp__interp_peek(stored, x->size);
}
static uint64_t fill_of(const run *r, const plan *x) {
    return x->fill == RP__NO_VAL ? 0 : stored_bits(r, x, r->regs[x->fill].p);
}

/* Columns [c0, c0 + n) of elements [first, last). */
typedef struct block {
    int64_t c0, n, first, last, length, bound, times, diagonal;
    const int64_t *col;  /* NULL: an index alone says where */
    const int64_t *spot; /* the column of each row that find_still has looked at; -1: none */
    bool parted;         /* pieces are all there is */
    unsigned count;
    piece pieces[PIECES];
} block;
static void begin_block(run *r, const plan *x, block *b, int64_t *col) {
    if (x->triangle || x->spots) return;
    b->col = !x->indexed || x->n_column || r->stride[x->from * r->dims + r->n_outer] ? col : NULL;
    if (b->col) find_columns(r, x, b->c0, b->c0 + b->n, col);
    if (x->indexed) return;
    b->parted = find_pieces(col, b->n, b->pieces, &b->count);
    if (b->parted || r->p->access_windows[x->from]) return;
    b->pieces[0] = (piece){PICKED, 0, b->n, 0};
    b->count = 1;
    b->parted = true;
}
/* What still terms add to rows [row, row + n). */
static void find_still(run *r, const plan *x, int64_t row, int64_t n, int64_t *still) {
    memset(still, 0, (size_t)n * sizeof *still);
    if (!x->n_still && !x->spots) return;
    run_part(r, RP__INTERP_STILL, 0, r->n_outer, row, n);
    for (unsigned t = 0; t < x->n_still; t++) {
        for (int64_t k = 0; k < n; k++) still[k] += term(r, x->still[t], k);
    }
}
/* The spots of the rows that find_still has looked at. */
static void find_columns_of_rows(const run *r, plan *x, int64_t n, int64_t *spot) {
    const int64_t lead = x->lead == RP__NO_VAL ? 0 : term(r, x->lead, 0), first = (int64_t)r->address[x->first_column];
    for (int64_t k = 0; k < n; k++) {
        bool there = true;
        for (unsigned g = 0; g < x->n_guard; g++) {
            const reg *guard = &r->regs[x->guard[g]];
            there = there && guard->p[k * guard->step];
        }
        const uint64_t at = (uint64_t)term(r, x->spot, k) + (uint64_t)lead - (uint64_t)first;
        spot[k] = there && (int64_t)at >= 0 ? (int64_t)at : -1;
    }
    if (x->other != RP__NO_VAL) x->fill = stored_bits(r, x, r->regs[x->other].p);
}
/* Columns [lo, hi) of a row of which one is what lies at `from`. */
static void spot_row(const plan *x, const block *b, char *to, const char *from, int64_t spot, int64_t lo, int64_t hi) {
    const int64_t at = spot - b->c0, size = x->size;
    if (x->fill)
        some_of[rp__interp_log2(x->size)](x, NULL, to, NULL, lo, hi);
    else
        memset(to + lo * size, 0, (size_t)((hi - lo) * size));
    if (at >= lo && at < hi) memcpy(to + at * size, from, (size_t)size);
}
/* Rows [row, stop) of such, which follow each other in memory: filled at once. */
static void spot_rows(const plan *x, const block *b, stretch *w, int64_t row, int64_t stop, char *to, uintptr_t from,
                      const int64_t *still, const int64_t *spot) {
    const int64_t size = x->size, start = row * b->length, end = stop * b->length;
    const int64_t lo = (b->first > start ? b->first : start) - start, hi = (b->last < end ? b->last : end) - start;
    if (lo >= hi) return;
    to += w->to * size;
    if (x->fill)
        some_of[rp__interp_log2(x->size)](x, NULL, to, NULL, lo, hi);
    else
        memset(to + lo * size, 0, (size_t)((hi - lo) * size));
    for (int64_t k = 0; k < stop - row; k++) {
        int64_t at, into, by;
        (void)stretch_next(w, &at, &into, &by);
        const int64_t column = k * b->length + spot[k];
        if ((uint64_t)spot[k] >= (uint64_t)b->n || column < lo || column >= hi) continue;
        const char *s = (const char *)(from + (uintptr_t)((at + still[k]) * size));
        switch (size) { /* of known length: no call */
        case 1: memcpy(to + column, s, 1); break;
        case 2: memcpy(to + column * 2, s, 2); break;
        case 4: memcpy(to + column * 4, s, 4); break;
        default: memcpy(to + column * 8, s, 8);
        }
    }
}
/* Columns [lo, hi) of a row: up to the diagonal, or from it on, as they are, and a value else. */
static void triangle_row(const plan *x, const block *b, char *to, const char *from, int64_t row, int64_t lo,
                         int64_t hi) {
    const int64_t size = x->size, at = b->diagonal + row + (x->lower ? 1 : 0) - b->c0;
    const int64_t cut = at < lo ? lo : at > hi ? hi : at;
    const int64_t begin = x->lower ? lo : cut, end = x->lower ? cut : hi, beside = x->lower ? cut : lo,
                  last = x->lower ? hi : cut;
    from += b->c0 * size;
    if (to != from) copy_run(to + begin * size, from + begin * size, (end - begin) * size);
    if (x->fill)
        some_of[rp__interp_log2(x->size)](x, NULL, to, NULL, beside, last);
    else
        memset(to + beside * size, 0, (size_t)((last - beside) * size));
}
static void run_row(const run *r, const plan *x, const block *b, int64_t row, char *to, const char *from,
                    const char *index, int64_t still, int64_t spot, bool inside) {
    const int64_t start = row * b->length + b->c0;
    const int64_t lo = b->first > start ? b->first - start : 0, hi = b->last - start < b->n ? b->last - start : b->n;
    const unsigned kind = rp__interp_log2(x->size);
    if (lo >= hi) return;
    if (x->spots)
        spot_row(x, b, to, from, spot, lo, hi);
    else if (x->triangle)
        triangle_row(x, b, to, from, still, lo, hi);
    else if (x->indexed)
        index_row(r, x, b->col, to, from, index, b->bound, b->times, lo, hi);
    else if (inside && b->parted && lo == 0 && hi == b->n)
        pieces_of[kind](r, x, b->pieces, b->count, b->col, to, from);
    else
        some_of[kind](x, b->col, to, inside ? from : NULL, lo, hi);
}
/* Rows [row, end), and what still terms add to each. */
static void run_rows(const run *r, const plan *x, const block *b, int64_t row, int64_t end, const int64_t *still) {
    const int64_t size = x->size, extent = r->n_outer ? r->extent[r->n_outer - 1] : 1;
    const uintptr_t from = (uintptr_t)r->address[x->from];
    char *const to = (char *)(uintptr_t)r->address[x->to] + b->c0 * size;
    const char *const index = x->indexed
                                  ? (const char *)(uintptr_t)r->address[x->index] +
                                        b->c0 * r->stride[x->index * r->dims + r->n_outer] * (int64_t)x->index_size
                                  : NULL;
    const int64_t *spot = b->spot;
    stretch w;
    stretch_begin(&w, r, x);
    while (row < end) {
        const int64_t left = extent - row % extent, stop = end - row < left ? end : row + left;
        stretch_at(&w, r, x, row);
        if (x->spots && b->n == b->length && w.to_step == b->length) {
            spot_rows(x, b, &w, row, stop, to, from, still, spot);
            still += stop - row, spot += stop - row, row = stop;
            continue;
        }
        for (; row < stop; row++, still++) {
            int64_t at, into, by;
            const bool inside = stretch_next(&w, &at, &into, &by);
            /* of no memory in particular, where all of the row lies outside */
            const uintptr_t place = from + (uintptr_t)((at + (x->triangle ? 0 : *still)) * size);
            run_row(r, x, b, row, to + into * size, (const char *)place,
                    index ? index + by * (int64_t)x->index_size : NULL, *still, x->spots ? *spot++ : -1, inside);
        }
    }
}

bool rp__interp_copies(run *r, int64_t first, int64_t last, char *scratch) {
    plan x;
    if (by_lines(r, first, last) || by_turns(r, first, last)) return true;
    if (!find_plan(r, &x)) return false;
    const int64_t length = r->extent[r->n_outer], row0 = first / length, row1 = (last - 1) / length + 1;
    r->walk = RP__WALK_ALONG;
    rp__interp_begin_walk(r);
    r->w = r->b = r->nq = 1;
    r->tile = rp__interp_tile_for(r->p, RP__INTERP_STILL_ROWS);
    if (r->tile < RP__INTERP_STILL_ROWS) return false;
    rp__interp_lay_out(r, scratch);
    rp__interp_uniform(r);
    x.fill = fill_of(r, &x);
    int64_t *const still = (int64_t *)(void *)(r->kept + (size_t)RP__INTERP_STILL_VALUES * RP__INTERP_STILL_ROWS * 8);
    int64_t *const col = still + RP__INTERP_STILL_ROWS;
    block b = {.first = first, .last = last, .length = length, .times = 1, .spot = col};
    if (x.indexed) b.bound = term(r, x.bound, 0);
    if (x.indexed && x.times != RP__NO_VAL) b.times = term(r, x.times, 0);
    if (x.triangle) { /* no column is as far from its row as 2^61 */
        const int64_t most = INT64_C(1) << 61, k = term(r, x.diagonal, 0);
        b.diagonal = (k < -most ? -most : k > most ? most : k) - (int64_t)r->address[x.first_column];
    }
    const bool one = row1 - row0 == 1;
    const int64_t begin = one ? first - row0 * length : 0, end = one ? last - row0 * length : length;
    for (b.c0 = begin; b.c0 < end; b.c0 += COLUMNS) {
        b.n = end - b.c0 < COLUMNS ? end - b.c0 : COLUMNS;
        begin_block(r, &x, &b, col);
        for (int64_t row = row0; row < row1; row += RP__INTERP_STILL_ROWS) {
            const int64_t n = row1 - row < RP__INTERP_STILL_ROWS ? row1 - row : RP__INTERP_STILL_ROWS;
            find_still(r, &x, row, n, still);
            if (x.spots) find_columns_of_rows(r, &x, n, col);
            run_rows(r, &x, &b, row, row + n, still);
        }
    }
    r->part = RP__INTERP_ALL;
    return true;
}
