/* Rows and elements whose places are the same in many planes (interp_parts.h): pools, their gradients, images at other places. Outer dims
   come in three parts: planes, along which no window moves and no place is counted; points; and lanes, where the last dims are such dims,
   too, as channels that lie last. What depends on points alone, places above all, is calculated once for a tile of points and all
   positions of the row; each plane then runs the rest of the program, points of a tile side by side, or the lanes of a point. A load
   becomes a table of distances in memory. Positions that give each reduction what changes nothing are passed over: what windows have
   outside of the memory, and elements that a WHERE replaces by such a value. The same bits as the walk across. */
#include "kernel/cpu/interp_parts.h"

typedef rp__interp run;
typedef rp__interp_reg reg;

enum {
    MOST = 1024, /* registers and instructions of a program */
    VALUES = 48,
    TABLES = 15,      /* values and tables together: bits of a mask */
    LEAST_PLANES = 4, /* that share what is calculated */
    LEAST_POINTS = 16,
    LEAST_LANES = 16,
    PLAIN = 4,    /* phases that may be plain */
    WIDEST = 512, /* points of a tile */
    ASKED = 8     /* positions that are asked at once where keys are followed */
};
enum { MOVING, STILL, UNIFORM };             /* of registers */
enum { PASSED, IN_PLACE, GATHERED, MASKED }; /* how the points of a tile get what a plain phase reduces at a position */
enum { NOWHERE, SOMEWHERE, EVERYWHERE, DENSE };
#define OUTSIDE UINT32_MAX
#define NO_ELEMENT UINT16_MAX

typedef struct place { /* of the points of a tile at one position: element `first`, and others from there on */
    int64_t first;
    int64_t kind;
    int64_t begin, end,
        step; /* points [begin, end) lead somewhere, and each `step` on from the one before; end 0: not so */
} place;
typedef struct value { /* that stands still, and that the rest of the program reads */
    uint16_t reg;
    uint8_t size;
    bool row;
    char *at;   /* position by position, point by point; of a row value by point */
    char *rows; /* of a row value, where lanes of several points lie side by side: of each of these */
} value;
typedef struct table {
    const rp__insn *load;
    place *place;
    uint32_t *far;
    const char *plane; /* memory of the plane, or point, under way */
} table;

/* A phase that does nothing but reduce what it loads, of lanes also divided by what stands still, or that and the identity where a value is false; or that where a key
   that it loads is the one of the point, and 0 elsewhere (gradients of the largest); or that finds the place of the largest. Of points
   the last is not. */
typedef struct plain {
    rp__window_fn *fn;
    rp__place_fn *place; /* both NULL: it is none of these */
    bool keyed;
    const rp__reduction *red;
    const table *from, *key;
    unsigned when, number, over; /* 1 + number of the value; over: what is loaded is divided by it, */
    bool times;                  /* or multiplied */
    uint16_t wanted, largest;    /* registers */
    bool all;                    /* 0, which memory outside gives, counts */
    bool listed;                 /* by planes.there: rows that are not there need not be looked at */
    uint8_t way[RP__LANES];      /* of points: of each position of the tile under way */
} plain;

/* Of the point under way: its rows, their keys and numbers, and a tree over rows that are there. Points of strided windows take turns in
   which these are. */
enum { TREES = 8, BITS = 64 };
typedef struct ready {
    const void *rows[RP__WINDOW_ROWS];
    const int64_t *keys[RP__WINDOW_ROWS];
    int32_t numbers[RP__WINDOW_ROWS];
    double over[RP__WINDOW_ROWS]; /* or float */
    uint64_t there;               /* rows that are not NULL, of BITS rows at most */
    uint64_t of[TREES];           /* of which rows a tree is; 0: of none yet */
    rp__window_tree *tree, trees[TREES];
} ready;

/* Points side by side whose sums take what is loaded where its key is the point's: instead of asking each position of each point, the
   elements that the tile meets are walked once, and each goes where its key says, to the lane of that point's position that leads there. */
typedef struct follow {
    bool is;                            /* of the tile under way */
    int64_t wanted;                     /* of the first point; one more from point to point */
    int64_t many;                       /* elements of memory, from `from` and `key` of the plane on */
    int64_t from, key;                  /* the first of them */
    uint64_t there;                     /* positions that lead somewhere */
    int64_t apart;                      /* positions of a point, and up to a multiple of ASKED */
    rp__window_fn *fn;                  /* of lanes */
    uint16_t reach[WIDEST * RP__LANES]; /* of each position of each point the element that it leads to; NO_ELEMENT */
    float wide[2 * WIDEST + 64];        /* elements of narrow types */
} follow;

typedef struct planes {
    _Alignas(64) char zeros[64];
    _Alignas(64) char block[VALUES][64];
    unsigned first, lanes; /* dims: of the first point, of the first lane */
    int64_t points, width; /* of a plane; lanes of a point, 0: points lie side by side */
    bool one;              /* point of a plane */
    int64_t tile, row;     /* points of a tile; the one under way, where lanes lie side by side */
    unsigned n_values, n_tables;
    uint64_t idle; /* values that are false and tables that lead nowhere at positions to pass over; 0: there are none */
    uint8_t *pass; /* of each position: it and those of its block are passed over */
    value value[VALUES];
    table table[TABLES];
    plain plain[PLAIN];
    ready ready[PLAIN];
    follow follow;
    uint64_t there[PLAIN][WIDEST]; /* rows of each point of the tile; of phases that are `listed` */
    /* of registers */
    uint8_t of[MOST], size[MOST], truth[MOST], is_row[MOST], slot[MOST],
        known[MOST];                /* slot: 1 + number of the value */
    uint64_t bits[MOST], why[MOST]; /* of those known where idle */
    /* of instructions; from: 1 + number of the table */
    uint8_t still[MOST], from[MOST];
    int64_t number[WIDEST + 64];
    uint8_t inside[WIDEST + 64];
    /* The space with lanes and planes first, where all points are one line; or of points some steps apart. */
    int64_t extent[RP__SPACE_MAX_DIMS], stride[RP__DAG_MAX_ACCESSES * RP__SPACE_MAX_DIMS],
        windows[RP__DAG_WINDOWS * (4 + RP__SPACE_MAX_DIMS)];
    uint64_t address[RP__DAG_MAX_ACCESSES];
} planes;

/* ---- parting the dims and the program */

static bool dim_stands(const rp__program *p, const rp__dims *x, unsigned d) {
    for (unsigned k = 0; k < p->n_windows; k++) {
        if (x->windows[k * (4 + x->dims) + 4 + d]) return false;
    }
    for (unsigned a = 0; a < p->n_accesses; a++) {
        if (p->access_iota[a] && x->stride[a * x->dims + d]) return false;
    }
    return true;
}
static int64_t size_of_dims(const int64_t *extent, unsigned from, unsigned to) {
    int64_t n = 1;
    for (unsigned d = from; d < to; d++) n *= extent[d];
    return n;
}
/* Windows that lie side by side: no place is computed, but elements of points lie apart. The first dim of these, of which some may be
   what the last one before them holds (out->split); n_outer: not so. */
static unsigned strided_points(const rp__program *p, const rp__dims *x, unsigned first, rp__planes *out) {
    enum { POINTS = 256, SHORT_RUN = 16 }; /* longer ones are read as they lie */
    const bool counted = first < x->n_outer;
    bool apart = false;
    for (unsigned a = 0; a < p->n_accesses && x->dims >= x->n_outer + 2 && x->extent[x->dims - 1] < SHORT_RUN; a++) {
        const int64_t step = x->stride[a * x->dims + x->n_outer - 1];
        apart = apart || (!p->access_row[a] && (step > 1 || step < 0));
    }
    if (!apart || counted) return apart && first ? first : x->n_outer;
    while (first > 1 && size_of_dims(x->extent, first, x->n_outer) < LEAST_POINTS) first--;
    const int64_t points = size_of_dims(x->extent, first, x->n_outer), before = first ? x->extent[first - 1] : 1;
    if (points >= LEAST_POINTS || x->dims == RP__SPACE_MAX_DIMS) return first;
    for (int64_t part = POINTS / points; part > 1 && out->split == 1; part--) {
        if (before % part == 0) out->split = part;
    }
    return first;
}
bool rp__interp_planes(const rp__program *p, const rp__dims *x, rp__planes *out) {
    const bool placed = p->places || (p->n_windows && p->plan != RP__PLAN_ELEMENTS);
    unsigned first = 0, last = x->n_outer;
    if (!last || (!placed && p->plan == RP__PLAN_ELEMENTS)) return false;
    while (first < last && dim_stands(p, x, first)) first++;
    if (first == last && placed) return false;
    out->split = 1;
    if (!placed && (first = strided_points(p, x, first, out)) == last) return false;
    while (placed && dim_stands(p, x, last - 1)) last--;
    if (size_of_dims(x->extent, last, x->n_outer) < LEAST_LANES) last = x->n_outer;
    out->first = first;
    out->lanes = last;
    out->planes = size_of_dims(x->extent, 0, first) / out->split;
    out->points = size_of_dims(x->extent, first, last) * out->split;
    out->width = last < x->n_outer ? size_of_dims(x->extent, last, x->n_outer) : 0;
    return out->width || (out->planes >= LEAST_PLANES && out->points >= LEAST_POINTS);
}

static bool stands(const planes *s, uint16_t v) { return v == RP__NO_VAL || s->of[v] != MOVING; }
static void classify(const run *r, planes *s, uint32_t k, bool row) {
    const rp__insn *i = &r->p->insns[k];
    bool still = false;
    switch (i->kind) {
    case RP__INSN_IOTA:
    case RP__INSN_INSIDE: still = true; break;
    case RP__INSN_OP: still = stands(s, i->a) && stands(s, i->b) && stands(s, i->c); break;
    case RP__INSN_KEPT: still = s->of[i->d] == STILL; break;
    default: break;
    }
    s->still[k] = still;
    s->from[k] = 0;
    if (!still) return;
    s->of[i->d] = STILL;
    s->size[i->d] = i->size;
    s->truth[i->d] = i->type == RP__TILE_BOOL;
    s->is_row[i->d] = row;
}
/* A moving instruction reads register v. Row values of points side by side stay where they are. */
static bool reads(planes *s, uint16_t v) {
    if (v == RP__NO_VAL || s->of[v] != STILL || s->slot[v] || (s->is_row[v] && !s->width)) return true;
    if (s->n_values == VALUES) return false;
    s->value[s->n_values++] = (value){.reg = v, .size = s->size[v], .row = s->is_row[v]};
    s->slot[v] = (uint8_t)s->n_values;
    return true;
}
static bool dense_lanes(const run *r, const planes *s, unsigned access) {
    int64_t want = 1;
    for (unsigned d = r->n_outer; d-- > s->lanes;) {
        if (r->extent[d] != 1 && r->stride[access * r->dims + d] != want) return false;
        want *= r->extent[d];
    }
    return true;
}
/* Loads at places that stand still; -1: the program cannot be parted so. */
static int take_load(const run *r, planes *s, uint32_t k) {
    const rp__insn *i = &r->p->insns[k];
    const bool placed = r->p->access_windows[i->access] || i->a != RP__NO_VAL;
    if (!stands(s, i->a) || !stands(s, i->b)) return 0;
    if (!placed && !s->one && (s->width || r->form[i->access] != RP__INTERP_GENERAL)) return 0;
    if (s->width && !dense_lanes(r, s, i->access)) return -1;
    for (unsigned t = 0; t < s->n_tables; t++) {
        if (s->table[t].load->d == i->d) s->from[k] = (uint8_t)(t + 1);
    }
    if (s->from[k]) return 1;
    if (s->n_tables == TABLES) return -1;
    s->table[s->n_tables++].load = i;
    s->from[k] = (uint8_t)s->n_tables;
    return 1;
}
static bool part(const run *r, planes *s) {
    const rp__program *p = r->p;
    s->n_values = s->n_tables = 0;
    memset(s->of, MOVING, p->n_regs);
    memset(s->slot, 0, p->n_regs);
    for (uint32_t k = 0; k < p->uniform_end; k++) s->of[p->insns[k].d] = UNIFORM;
    for (unsigned phase = 0; phase <= p->n_phases; phase++) {
        for (uint32_t k = p->row[phase].begin; k < p->row[phase].end; k++) classify(r, s, k, true);
        if (phase == p->n_phases) break;
        for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) classify(r, s, k, false);
    }
    bool placed = false;
    for (unsigned phase = 0; phase < p->n_phases; phase++) {
        for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
            const rp__insn *i = &p->insns[k];
            if (i->kind != RP__INSN_LOAD) continue;
            const int taken = take_load(r, s, k);
            if (taken < 0) return false;
            placed = placed || (taken && (i->a != RP__NO_VAL || p->plan != RP__PLAN_ELEMENTS));
        }
    }
    if (!placed) return false;
    bool room = true;
    for (uint32_t k = p->uniform_end; k < p->n_insns; k++) {
        const rp__insn *i = &p->insns[k];
        if (s->still[k] || s->from[k] || i->kind == RP__INSN_STORE || i->kind == RP__INSN_KEPT) continue;
        room = room && reads(s, i->a);
        if (i->kind != RP__INSN_REDUCE) room = room && reads(s, i->b) && reads(s, i->c);
    }
    for (unsigned k = 0; k < p->n_stores; k++)
        room =
            room && reads(s, p->stores[k].value) && reads(s, p->stores[k].offset) && reads(s, p->stores[k].predicate);
    return room;
}

/* ---- positions to pass over */

static void know(planes *s, uint16_t v, uint64_t bits, uint64_t why) {
    s->known[v] = true;
    s->bits[v] = bits;
    s->why[v] = why;
}
static bool checks(const rp__program *p, const rp__insn *i) {
    static const uint8_t dear[] = {RP__CHECK_INDEX, RP__FLOORDIV, RP__REMAINDER};
    for (unsigned k = 0; k < sizeof dear; k++) {
        for (unsigned t = RP__TILE_I32; t < RP__TILE_TYPES; t++) {
            if (i->fn == p->tiles->op[dear[k]][t]) return true;
        }
    }
    return false;
}
/* What operation i gives, if its operands are known. */
static void know_result(const run *r, planes *s, const rp__insn *i) {
    const rp__tiles *tiles = r->p->tiles;
    const uint16_t operand[3] = {i->a, i->b, i->c};
    if (i->fn == tiles->op[RP__WHERE][i->type]) {
        if (s->known[i->a] && !(s->bits[i->a] & 1) && s->known[i->c])
            know(s, i->d, s->bits[i->c], s->why[i->a] | s->why[i->c]);
        return;
    }
    if (i->type == RP__TILE_BOOL && i->fn == tiles->op[RP__AND][RP__TILE_BOOL]) {
        for (unsigned k = 0; k < 2; k++) {
            if (s->known[operand[k]] && !(s->bits[operand[k]] & 1)) {
                know(s, i->d, 0, s->why[operand[k]]);
                return;
            }
        }
    }
    _Alignas(64) char at[3][64], d[64];
    uint64_t why = 0;
    rp__tile_call t = {.d = d, .n = 1, .imm = i->imm, .env = &r->env};
    for (unsigned k = 0; k < 3; k++) {
        if (operand[k] == RP__NO_VAL) continue;
        if (!s->known[operand[k]]) return;
        why |= s->why[operand[k]];
        rp__interp_splat(at[k], s->bits[operand[k]], s->size[operand[k]]);
    }
    t.a = at[0];
    t.b = at[1];
    t.c = at[2];
    i->fn(&t);
    know(s, i->d, rp__interp_peek(d, i->size), why);
}
static bool changes_nothing(const rp__reduction *red, uint64_t bits) {
    const uint64_t all = red->size == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * red->size) - 1, sign = (all >> 1) + 1;
    if (((bits ^ red->identity) & all) == 0) return true;
    /* A sum begins with 0, so that it is never -0. */
    return red->kind == RP__REDUCE_SUM && (red->type == RP__TILE_F32 || red->type == RP__TILE_F64) &&
           (bits & all) == sign;
}
/* Under what condition each phase may pass over a position. */
static uint64_t idle_when(const run *r, planes *s) {
    const rp__program *p = r->p;
    uint64_t when = 0;
    memset(s->known, 0, p->n_regs);
    for (uint32_t k = 0; k < p->uniform_end; k++) {
        const rp__insn *i = &p->insns[k];
        s->size[i->d] = i->size;
        know(s, i->d, rp__interp_peek(r->regs[i->d].p, i->size), 0);
    }
    for (unsigned v = 0; v < s->n_values; v++) {
        if (!s->value[v].row && s->truth[s->value[v].reg]) know(s, s->value[v].reg, 0, UINT64_C(1) << v);
    }
    for (unsigned phase = 0; phase < p->n_phases; phase++) {
        for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
            const rp__insn *i = &p->insns[k];
            if (s->still[k] || i->kind == RP__INSN_KEPT) continue;
            switch (i->kind) {
            case RP__INSN_LOAD:
                s->size[i->d] = i->size;
                if (s->from[k]) know(s, i->d, 0, UINT64_C(1) << (VALUES + s->from[k] - 1));
                break;
            case RP__INSN_OP:
                s->size[i->d] = i->size;
                if (checks(p, i)) return 0;
                know_result(r, s, i);
                break;
            case RP__INSN_REDUCE:
                if (!s->known[i->a] || !changes_nothing(&p->reductions[i->access], s->bits[i->a])) return 0;
                when |= s->why[i->a];
                break;
            default: return 0;
            }
        }
    }
    return when;
}

/* What makes register v in a phase; NULL: nothing does. moving: counts what moves. */
static const rp__insn *made_in(const run *r, const planes *s, unsigned phase, uint16_t v, unsigned *moving) {
    const rp__program *p = r->p;
    for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
        if (p->insns[k].d != v || p->insns[k].kind == RP__INSN_REDUCE) continue;
        *moving += !s->still[k];
        return &p->insns[k];
    }
    return NULL;
}
static bool is_op(const run *r, const rp__insn *i, rp__prim op, unsigned type) {
    return i && i->kind == RP__INSN_OP && i->fn == r->p->tiles->op[op][type];
}
/* 1 + number of the value of each element that v is; 0: it is none. */
static unsigned value_of(const planes *s, uint16_t v) {
    return v != RP__NO_VAL && s->of[v] == STILL && !s->is_row[v] ? s->slot[v] : 0;
}
static bool uniform_is(const run *r, const planes *s, uint16_t v, unsigned size, int64_t is) {
    return v != RP__NO_VAL && s->of[v] == UNIFORM && rp__interp_peek(r->regs[v].p, size) == (uint64_t)is;
}
static const table *loaded(const run *r, const planes *s, const rp__insn *i) {
    const unsigned from = i ? s->from[i - r->p->insns] : 0;
    return from ? &s->table[from - 1] : NULL;
}
/* v is what the phase loads, or that where a value is true; *other: what it is elsewhere. */
static bool match_loaded(const run *r, const planes *s, unsigned phase, plain *x, uint16_t v, uint64_t *other,
                         unsigned *moving) {
    const rp__insn *i = made_in(r, s, phase, v, moving);
    unsigned before = 0; /* what moves in the phase that keeps it */
    for (bool kept = i && i->kind == RP__INSN_KEPT; kept && phase > 0; kept = !i || i->kind == RP__INSN_KEPT)
        i = made_in(r, s, --phase, v, moving = &before);
    *other = 0;
    x->when = 0;
    if (i && is_op(r, i, RP__WHERE, i->type)) {
        x->when = value_of(s, i->a);
        if (!x->when || s->of[i->c] != UNIFORM) return false;
        *other = rp__interp_peek(r->regs[i->c].p, i->size);
        i = made_in(r, s, phase, i->b, moving);
    }
    x->over = 0;
    x->times = false;
    if (s->width && is_op(r, i, RP__DIV, x->red->type)) {
        x->over = value_of(s, i->b);
        if (!x->over) return false;
        i = made_in(r, s, phase, i->a, moving);
    } else if (s->width && is_op(r, i, RP__MUL, x->red->type)) {
        const bool second = value_of(s, i->b) != 0;
        x->over = value_of(s, second ? i->b : i->a);
        if (!x->over) return false;
        x->times = true;
        i = made_in(r, s, phase, second ? i->a : i->b, moving);
    }
    x->from = loaded(r, s, i);
    return x->from && r->p->access_load[i->access] < 3;
}
static void match_sum(const run *r, const planes *s, unsigned phase, plain *x, uint16_t v, unsigned *moving) {
    const rp__tiles *tiles = r->p->tiles;
    uint64_t other;
    if (!match_loaded(r, s, phase, x, v, &other, moving) || (x->over && x->red->kind != RP__REDUCE_SUM)) return;
    rp__window_fn *fn = tiles->reduce_window[x->red->kind][x->red->type][r->p->access_load[x->from->load->access]];
    if (!x->when || changes_nothing(x->red, other)) x->fn = fn;
    x->all = x->when || x->times || !changes_nothing(x->red, 0); /* 0 times what is no number is none */
}
/* WHERE(inside and key == the point's, what is loaded, 0) */
static void match_keyed(const run *r, const planes *s, unsigned phase, plain *x, uint16_t v, unsigned *moving) {
    const rp__tiles *tiles = r->p->tiles;
    const rp__insn *where = made_in(r, s, phase, v, moving);
    if (!where || !is_op(r, where, RP__WHERE, x->red->type) || x->red->kind != RP__REDUCE_SUM ||
        !uniform_is(r, s, where->c, where->size, 0))
        return;
    const rp__insn *both = made_in(r, s, phase, where->a, moving);
    if (!is_op(r, both, RP__AND, RP__TILE_BOOL)) return;
    x->when = value_of(s, both->a) ? value_of(s, both->a) : value_of(s, both->b);
    const rp__insn *eq = made_in(r, s, phase, value_of(s, both->a) ? both->b : both->a, moving);
    if (!x->when || !is_op(r, eq, RP__EQ, RP__TILE_I64)) return;
    const bool first = s->of[eq->a] == STILL;
    x->wanted = first ? eq->a : eq->b;
    if (s->of[x->wanted] != STILL || !s->is_row[x->wanted] || (s->width && !s->slot[x->wanted])) return;
    const rp__insn *key = made_in(r, s, phase, first ? eq->b : eq->a, moving),
                   *load = made_in(r, s, phase, where->b, moving);
    x->key = loaded(r, s, key);
    x->from = loaded(r, s, load);
    if (!x->key || !x->from || r->p->access_load[key->access] || r->p->access_load[load->access] > 2) return;
    x->fn = tiles->reduce_window[RP__REDUCE_SUM][x->red->type][r->p->access_load[load->access]];
    x->keyed = x->fn != NULL;
    x->all = true;
}
/* WHERE(isnan(x), -1 - number, WHERE(inside and x == largest, number, far)), where x is what is loaded. */
static void match_place(const run *r, const planes *s, unsigned phase, plain *x, uint16_t v, unsigned *moving) {
    const rp__program *p = r->p;
    const rp__insn *none = made_in(r, s, phase, v, moving);
    if (x->red->kind != RP__REDUCE_MIN || !is_op(r, none, RP__WHERE, RP__TILE_I64)) return;
    const rp__insn *nan = made_in(r, s, phase, none->a, moving), *where = made_in(r, s, phase, none->c, moving),
                   *less = made_in(r, s, phase, none->b, moving);
    if (!nan || !is_op(r, where, RP__WHERE, RP__TILE_I64) || !uniform_is(r, s, where->c, 8, INT64_MAX) ||
        !is_op(r, less, RP__SUB, RP__TILE_I64) || less->b != where->b || !uniform_is(r, s, less->a, 8, -1))
        return;
    x->number = value_of(s, where->b);
    const rp__insn *is = made_in(r, s, phase, where->a, moving);
    unsigned inside = 0;
    if (is_op(r, is, RP__AND, RP__TILE_BOOL)) {
        const bool first = value_of(s, is->a) != 0;
        inside = value_of(s, first ? is->a : is->b);
        is = made_in(r, s, phase, first ? is->b : is->a, moving);
        if (!inside) return;
    }
    if (!x->number || !is || (is->a == nan->a) == (is->b == nan->a)) return;
    x->largest = is->a == nan->a ? is->b : is->a;
    const rp__reduction *red = NULL;
    for (unsigned k = 0; k < p->n_reductions; k++) {
        if (p->reductions[k].d == x->largest) red = &p->reductions[k];
    }
    uint64_t other;
    if (!red || !is_op(r, nan, RP__ISNAN, red->type) || !is_op(r, is, RP__EQ, red->type) ||
        !match_loaded(r, s, phase, x, nan->a, &other, moving) || x->when != inside || x->over)
        return;
    x->all = true;
    x->place = p->tiles->place[red->type][p->access_load[x->from->load->access]];
}
/* Is the phase plain? Uniform registers are set. */
static void find_plain(const run *r, planes *s, unsigned phase) {
    const rp__program *p = r->p;
    plain *x = &s->plain[phase];
    *x = (plain){0};
    if (r->row_len > (s->width ? RP__WINDOW_ROWS : RP__LANES)) return;
    const rp__insn *reduce = NULL;
    unsigned moving = 0;
    for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
        moving += !s->still[k];
        if (p->insns[k].kind != RP__INSN_REDUCE) continue;
        if (reduce) return;
        reduce = &p->insns[k];
    }
    static void (*const match[])(const run *, const planes *, unsigned, plain *, uint16_t,
                                 unsigned *) = {match_sum, match_keyed, match_place};
    for (unsigned m = 0; m < sizeof match / sizeof *match && reduce; m++) {
        unsigned seen = 1;
        *x = (plain){.red = &p->reductions[reduce->access]};
        if (!s->width && match[m] == match_place) continue;
        match[m](r, s, phase, x, reduce->a, &seen);
        if ((x->fn || x->place) && seen == moving) return;
    }
    *x = (plain){0};
}
static bool is_plain(const planes *s, unsigned phase) {
    return phase < PLAIN && (s->plain[phase].fn || s->plain[phase].place);
}
/* Keys of points are followed where the tile allows it, else the phase goes as those do that are not plain. */
static bool stays_plain(const planes *s, unsigned phase) {
    return is_plain(s, phase) && (s->width || !s->plain[phase].keyed);
}
/* Plain phases keep nothing: another that reads what one would keep is plain, too, or that one is not. */
static void find_plains(const run *r, planes *s) {
    const rp__program *p = r->p;
    bool keeps = false;
    for (unsigned phase = 0; phase < p->n_phases && phase < PLAIN; phase++) find_plain(r, s, phase);
    for (unsigned phase = 0; phase < p->n_phases; phase++) {
        for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
            const rp__insn *i = &p->insns[k];
            keeps = keeps || (i->kind == RP__INSN_KEPT && !s->still[k] && !stays_plain(s, phase));
        }
    }
    for (unsigned phase = 0; keeps && phase < p->n_phases && phase < PLAIN; phase++) {
        for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
            const rp__insn *i = &p->insns[k];
            if (i->home == RP__HOME_KEPT && i->kind != RP__INSN_KEPT && !s->still[k]) s->plain[phase] = (plain){0};
        }
    }
}
/* Do the `many` of w points that lead somewhere stand side by side, at equal distances in memory? So in pools of one dim. */
static void find_steps(const planes *s, place *x, int64_t w, int64_t many) {
    int64_t begin = 0;
    x->end = 0;
    while (begin < w && !s->inside[begin]) begin++;
    const int64_t end = begin + many;
    if (many < 2 || end > w) return;
    const int64_t step = s->number[begin + 1] - s->number[begin];
    for (int64_t k = begin; k < end; k++) {
        if (!s->inside[k] || (k > begin && s->number[k] - s->number[k - 1] != step)) return;
    }
    x->begin = begin, x->end = end, x->step = step;
}

/* ---- what stands still */

/* Loads by the same windows, whose elements lie alike: gradients of the largest and their keys. */
static bool lie_alike(const run *r, const rp__insn *x, const rp__insn *y) {
    const rp__program *p = r->p;
    const unsigned a = x->access, b = y->access, n = p->access_windows[a];
    return n && n == p->access_windows[b] &&
           !memcmp(r->stride + a * r->dims, r->stride + b * r->dims, r->dims * sizeof *r->stride) &&
           !memcmp(r->windows + (size_t)p->first_window[a] * (4 + r->dims),
                   r->windows + (size_t)p->first_window[b] * (4 + r->dims), n * (4 + r->dims) * sizeof *r->windows);
}
/* `before`: tables of which that position is known. */
static void find_places(run *r, planes *s, table *t, unsigned before, int64_t pos, int64_t q) {
    const rp__insn *i = t->load;
    const unsigned a = i->access;
    const int64_t w = r->w;
    uint32_t *far = t->far + pos * w;
    place *x = &t->place[pos];
    assert(w >= 1 && w <= WIDEST);
    for (unsigned k = 0; k < before; k++) {
        if (!lie_alike(r, i, s->table[k].load)) continue;
        *x = s->table[k].place[pos];
        memcpy(far, s->table[k].far + pos * w, (size_t)w * sizeof *far);
        return;
    }
    if (r->p->access_windows[a]) {
        rp__insn as = *i;
        as.kind = RP__INSN_IOTA; /* an address and a number of elements, which is 0 outside alone */
        rp__interp_windows_part(r, &as, (char *)s->number, 0, r->n_outer, r->w0, w, pos);
        const int64_t base = (int64_t)(intptr_t)r->base[a];
        for (int64_t k = 0; k < w; k++) {
            s->inside[k] = s->number[k] != 0;
            s->number[k] -= base;
        }
    } else {
        rp__interp_iota_part(r, a, s->number, 0, r->n_outer, r->w0, w,
                             rp__interp_offset(r, a, r->n_outer, r->dims, pos));
        if (i->a != RP__NO_VAL) {
            const int64_t step = r->regs[i->a].step;
            const int64_t *at = (const int64_t *)(const void *)r->regs[i->a].p + q * w * step;
            for (int64_t k = 0; k < w; k++) s->number[k] += at[k * step];
        }
        if (i->b != RP__NO_VAL) {
            const int64_t step = r->regs[i->b].step;
            const uint8_t *is = (const uint8_t *)r->regs[i->b].p + q * w * step;
            for (int64_t k = 0; k < w; k++) s->inside[k] = is[k * step] != 0;
        } else {
            for (int64_t k = 0; k < w; k++) s->inside[k] = 1;
        }
    }
    int64_t least = INT64_MAX, most = INT64_MIN, many = 0;
    for (int64_t k = 0; k < w; k++) {
        if (!s->inside[k]) continue;
        least = s->number[k] < least ? s->number[k] : least;
        most = s->number[k] > most ? s->number[k] : most;
        many++;
    }
    x->kind = many == 0 ? NOWHERE : many < w ? SOMEWHERE : EVERYWHERE;
    x->first = many ? least : 0;
    bool dense = many == w;
    for (int64_t k = 0; k < w; k++) {
        const int64_t at = s->number[k] - x->first;
        dense = dense && at == k;
        far[k] = s->inside[k] ? (uint32_t)at : OUTSIDE;
    }
    if (dense) x->kind = DENSE;
    find_steps(s, x, w, many);
    if (many && (uint64_t)most - (uint64_t)least >= OUTSIDE) x->kind = -1;
}
static int64_t block_at(const run *r, int64_t pos) { return r->row_len - pos < r->b ? r->row_len - pos : r->b; }
/* The tile of points from r->w0 on; false: places lie too far apart for a table. */
static bool find_still(run *r, planes *s) {
    const rp__program *p = r->p;
    for (unsigned phase = 0; phase <= p->n_phases; phase++) {
        for (uint32_t k = p->row[phase].begin; k < p->row[phase].end; k++) {
            if (s->still[k]) rp__interp_row(r, (struct rp__segment){k, k + 1});
        }
        if (phase == p->n_phases) break;
        for (int64_t pos = 0; pos < r->row_len; pos += r->b) {
            r->pos = pos;
            r->nq = block_at(r, pos);
            for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
                const rp__insn *i = &p->insns[k];
                table *t = s->from[k] ? &s->table[s->from[k] - 1] : NULL;
                if (t && t->load == i) {
                    for (int64_t q = 0; q < r->nq; q++) find_places(r, s, t, (unsigned)(t - s->table), pos + q, q);
                } else if (s->still[k]) {
                    const unsigned slot = s->slot[i->d];
                    char *d = slot                       ? s->value[slot - 1].at + pos * r->w * i->size
                              : i->home == RP__HOME_KEPT ? r->kept + r->kept_cap * i->at + pos * r->w * i->size
                                                         : r->tiles + r->tile * i->at;
                    if (i->kind == RP__INSN_OP) { /* never into memory: what stores it may stand elsewhere */
                        r->regs[i->d] = (reg){d, 1};
                        rp__interp_call(r, i, d, r->nq * r->w);
                    } else {
                        rp__interp_insn(r, i, d, r->nq * r->w);
                    }
                }
            }
        }
    }
    for (unsigned t = 0; t < s->n_tables; t++) {
        for (int64_t pos = 0; pos < r->row_len; pos++) {
            if (s->table[t].place[pos].kind < 0) return false;
        }
    }
    return true;
}
static bool all_zero(const char *at, int64_t n) {
    uint64_t any = 0;
    int64_t k = 0;
    for (; k + 8 <= n; k += 8) any |= rp__interp_peek(at + k, 8);
    for (; k < n; k++) any |= (uint8_t)at[k];
    return !any;
}
static void find_idle(run *r, planes *s) {
    for (int64_t pos = 0; pos < r->row_len; pos += r->b) {
        const int64_t nq = block_at(r, pos);
        bool idle = s->idle != 0;
        for (unsigned v = 0; v < s->n_values && idle; v++) {
            if (s->idle >> v & 1) idle = all_zero(s->value[v].at + pos * r->w, nq * r->w);
        }
        for (unsigned t = 0; t < s->n_tables; t++) {
            for (int64_t q = 0; q < nq && idle && (s->idle >> (VALUES + t) & 1); q++)
                idle = s->table[t].place[pos + q].kind == NOWHERE;
        }
        s->pass[pos] = idle;
    }
}

/* How the points of the tile, whose places are known, get what plain phases reduce. */
static void find_ways(const run *r, planes *s) {
    for (unsigned phase = 0; phase < PLAIN && phase < r->p->n_phases && !s->width; phase++) {
        plain *x = &s->plain[phase];
        if (!stays_plain(s, phase)) continue;
        for (int64_t pos = 0; pos < r->row_len; pos++) {
            const char *when = x->when ? s->value[x->when - 1].at + pos * r->w : NULL;
            const int64_t kind = x->from->place[pos].kind;
            bool every = true;
            for (int64_t k = 0; when && k < r->w; k++) every &= when[k] != 0;
            x->way[pos] = when                         ? all_zero(when, r->w) ? PASSED
                                                         : !every             ? MASKED
                                                                              : GATHERED
                          : kind == NOWHERE && !x->all ? PASSED
                                                       : GATHERED;
            if (x->way[pos] == GATHERED && kind == DENSE) x->way[pos] = IN_PLACE;
        }
    }
}

/* The phase whose keys are followed; NULL: there is none. */
static const plain *keyed_phase(const run *r, const planes *s) {
    const plain *found = NULL;
    for (unsigned phase = 0; phase < r->p->n_phases && phase < PLAIN && !s->width; phase++) {
        if (!s->plain[phase].keyed) continue;
        if (found) return NULL;
        found = &s->plain[phase];
    }
    return found;
}
/* What the tile of points, whose places are known, needs for it; false: not so here. */
static bool find_follow(const run *r, planes *s, const plain *x) {
    follow *f = &s->follow;
    const reg *wanted = &r->regs[x->wanted];
    const int64_t w = r->w, *keys = (const int64_t *)(const void *)wanted->p;
    const char *when = s->value[x->when - 1].at;
    int64_t least = INT64_MAX, most = INT64_MIN;
    f->is = false;
    if (w > 1 && wanted->step != 1) return false;
    f->wanted = keys[0];
    for (int64_t k = 0; k < w; k++) {
        if (keys[k] - keys[0] != k) return false;
    }
    for (int64_t pos = 0; pos < r->row_len; pos++) {
        const place *p = &x->from->place[pos], *q = &x->key->place[pos];
        const uint32_t *far = x->from->far + pos * w, *key = x->key->far + pos * w;
        if (p->kind != NOWHERE) least = p->first < least ? p->first : least;
        for (int64_t k = 0; k < w; k++) {
            const bool inside = far[k] != OUTSIDE;
            if (key[k] != far[k] || inside != (when[pos * w + k] != 0)) return false;
            if (!inside) continue;
            most = p->first + far[k] > most ? p->first + far[k] : most;
            f->from = p->first, f->key = q->first;
        }
    }
    const int64_t apart = f->key - f->from; /* the same at every position */
    f->many = most < least ? 0 : most - least + 1;
    if (f->many > (int64_t)(sizeof f->wide / sizeof *f->wide) || f->many > 2 * w + 64) return false;
    f->apart = (r->row_len + ASKED - 1) / ASKED * ASKED;
    f->there = 0;
    memset(f->reach, 0xff, (size_t)(w * f->apart) * sizeof *f->reach);
    for (int64_t pos = 0; pos < r->row_len && f->many; pos++) {
        const place *p = &x->from->place[pos];
        const uint32_t *far = x->from->far + pos * w;
        if (p->kind == NOWHERE) continue;
        if (x->key->place[pos].first - p->first != apart) return false;
        f->there |= UINT64_C(1) << pos;
        for (int64_t k = 0; k < w; k++) {
            if (far[k] == OUTSIDE) continue;
            const uint16_t there = (uint16_t)(p->first + far[k] - least);
            uint16_t *const reach = f->reach + k * f->apart;
            for (int64_t j = 0; j < pos; j++)
                if (reach[j] == there) return false; /* twice the same */
            reach[pos] = there;
        }
    }
    f->from = f->many ? least : 0;
    f->key = f->many ? least + apart : 0;
    f->fn = r->p->tiles->reduce_window[RP__REDUCE_SUM][x->red->type][0];
    f->is = true;
    return true;
}

/* ---- the rest of the program */

#define GATHER(T, VALUE)                                                                                               \
    {                                                                                                                  \
        T *to = (T *)(void *)d;                                                                                        \
        const T *at = (const T *)(const void *)from;                                                                   \
        for (int64_t k = 0; k < n; k++) to[k] = VALUE;                                                                 \
    }                                                                                                                  \
    break
#define GATHERS(VALUE)                                                                                                 \
    switch (size) {                                                                                                    \
    case 1: GATHER(uint8_t, VALUE);                                                                                    \
    case 2: GATHER(uint16_t, VALUE);                                                                                   \
    case 4: GATHER(uint32_t, VALUE);                                                                                   \
    default: GATHER(uint64_t, VALUE);                                                                                  \
    }
static void gather(char *d, const char *from, const uint32_t *far, unsigned size, int64_t kind, int64_t n) {
    if (kind == NOWHERE) {
        memset(d, 0, (size_t)n * size);
    } else if (kind == DENSE) {
        memcpy(d, from, (size_t)n * size);
    } else if (kind == EVERYWHERE) {
        GATHERS(at[far[k]])
    } else {
        GATHERS(far[k] == OUTSIDE ? 0 : at[far[k]])
    }
}
/* Of the n points of a tile at one position. */
static void gather_at(const run *r, char *d, const char *memory, const place *x, const uint32_t *far, unsigned size,
                      int64_t n) {
    const char *from = memory + x->first * (int64_t)size;
    if (!x->end || x->kind == DENSE) {
        gather(d, from, far, size, x->kind, n);
        return;
    }
    memset(d, 0, (size_t)x->begin * size);
    rp__interp_copy_in(r, d + x->begin * size, from + far[x->begin] * (int64_t)size, size, x->step, x->end - x->begin);
    memset(d + x->end * size, 0, (size_t)(n - x->end) * size);
}
static void convert_load(const run *r, const rp__insn *i, char *d, const char *from, int64_t n) {
    rp__tile_call t = {.d = d, .a = from, .n = n};
    r->p->tiles->load[r->p->access_load[i->access] - 1](&t);
}
static reg memory_reg(const char *p) {
    union {
        const char *c;
        char *m;
    } memory = {.c = p}; /* registers that were loaded are never written */
    return (reg){memory.m, 1};
}
static void load_points(run *r, const rp__insn *i, const table *t, char *d, int64_t n) {
    const unsigned size = r->p->access_size[i->access], convert = r->p->access_load[i->access];
    const place *x = &t->place[r->pos];
    const char *from = t->plane + x->first * (int64_t)size;
    r->regs[i->d] = (reg){d, 1};
    if (x->kind == DENSE && r->nq == 1) {
        if (convert)
            convert_load(r, i, d, from, n);
        else if (r->whole && i->home != RP__HOME_KEPT)
            r->regs[i->d] = memory_reg(from);
        else
            memcpy(d, from, (size_t)n * size);
        return;
    }
    char *to = convert ? r->raw : d;
    for (int64_t q = 0; q < r->nq; q++, x++)
        gather_at(r, to + q * r->w * size, t->plane, x, t->far + (r->pos + q) * r->w, size, r->w);
    if (convert) convert_load(r, i, d, to, n);
}
static void load_lanes(run *r, const planes *s, const rp__insn *i, const table *t, char *d, int64_t n) {
    const unsigned size = r->p->access_size[i->access];
    const uint32_t far = t->far[r->pos * s->tile + s->row];
    const bool kept = i->home == RP__HOME_KEPT; /* a later phase reads it from there */
    if (far == OUTSIDE && !kept) {
        r->regs[i->d] = memory_reg(s->zeros);
        r->regs[i->d].step = 0;
        return;
    }
    const char *from = t->plane + (t->place[r->pos].first + far) * (int64_t)size;
    r->regs[i->d] = (reg){d, 1};
    if (far == OUTSIDE)
        memset(d, 0, (size_t)n * i->size);
    else if (r->p->access_load[i->access])
        convert_load(r, i, d, from, n);
    else if (r->whole && !kept)
        r->regs[i->d] = memory_reg(from);
    else
        memcpy(d, from, (size_t)n * size);
}
static reg of_point(planes *s, unsigned v, int64_t number) {
    const value *x = &s->value[v];
    char *block = s->block[v];
    rp__interp_splat(block, rp__interp_peek(x->at + number * x->size, x->size), x->size);
    return (reg){block, 0};
}
/* One of two whole operands, where it need not be copied: a tile may be written again while the result is read. */
static bool choose(run *r, const rp__insn *i) {
    if (i->kind != RP__INSN_OP || i->fn != r->p->tiles->op[RP__WHERE][i->type] || i->direct ||
        i->home == RP__HOME_KEPT || r->regs[i->a].step)
        return false;
    const reg *x = &r->regs[*r->regs[i->a].p ? i->b : i->c];
    if (x->p >= r->tiles && x->p < r->tiles + r->tile * r->p->tile_bytes) return false;
    r->regs[i->d] = *x;
    return true;
}
static void run_block(run *r, planes *s, unsigned phase) {
    const rp__program *p = r->p;
    const int64_t n = r->nq * r->w;
    r->whole = (uint64_t)n * p->min_size % p->tiles->vec_bytes == 0;
    for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
        const rp__insn *i = &p->insns[k];
        if (s->still[k]) {
            const unsigned slot = s->slot[i->d];
            if (slot && s->width)
                r->regs[i->d] = of_point(s, slot - 1, r->pos * s->tile + s->row);
            else if (slot)
                r->regs[i->d] = (reg){s->value[slot - 1].at + r->pos * r->w * i->size, 1};
            continue;
        }
        char *d = i->home == RP__HOME_KEPT ? r->kept + r->kept_cap * i->at + r->pos * r->w * i->size
                                           : r->tiles + r->tile * i->at;
        const table *t = s->from[k] ? &s->table[s->from[k] - 1] : NULL;
        if (t && s->width)
            load_lanes(r, s, i, t, d, n);
        else if (t)
            load_points(r, i, t, d, n);
        else if (!s->width || !choose(r, i))
            rp__interp_insn(r, i, d, n);
    }
}
static bool passes(const run *r, const planes *s) {
    if (!s->width) return s->pass[r->pos];
    const int64_t number = r->pos * s->tile + s->row;
    bool idle = s->idle != 0;
    for (uint64_t left = s->idle; left && idle; left &= left - 1) {
        const unsigned k = (unsigned)__builtin_ctzll(left);
        idle = k < VALUES ? !s->value[k].at[number] : s->table[k - VALUES].far[number] == OUTSIDE;
    }
    return idle;
}
void rp__interp_tree(rp__window_tree *t, const void *const *a, int64_t rows) {
    uint8_t slot[RP__LANES] = {0}; /* 1 + place among those that are there */
    t->n = t->more = t->pairs = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (!a[r] || slot[r % RP__LANES]) continue;
        t->row[t->n++] = (uint8_t)r;
        slot[r % RP__LANES] = (uint8_t)t->n;
    }
    for (int64_t r = RP__LANES; r < rows; r++) {
        const unsigned lane = slot[r % RP__LANES];
        if (!a[r] || t->row[lane - 1] == r) continue;
        t->row[t->n + t->more] = (uint8_t)r;
        t->onto[t->n + t->more++] = (uint8_t)(lane - 1);
    }
    int64_t lanes = rows < RP__LANES ? rows : RP__LANES;
    for (int64_t half = RP__LANES / 2; half > 0; half /= 2) {
        for (int64_t r = half; r < lanes; r++) {
            if (!slot[r]) continue;
            if (slot[r - half]) {
                t->to[t->pairs] = (uint8_t)(slot[r - half] - 1);
                t->from[t->pairs++] = (uint8_t)(slot[r] - 1);
            } else {
                slot[r - half] = slot[r];
            }
        }
        if (lanes > half) lanes = half;
    }
    t->first = slot[0] ? slot[0] - 1 : 0;
}
/* The rows of each point of a tile. Phases with numbers of rows look at all of them anyway. */
static void list_rows(const run *r, planes *s, int64_t points) {
    for (unsigned phase = 0; phase < PLAIN && phase < r->p->n_phases; phase++) {
        plain *x = &s->plain[phase];
        s->ready[phase].there = 0;
        memset(s->ready[phase].of, 0, sizeof s->ready[phase].of);
        x->listed = x->fn && points <= WIDEST && r->row_len <= BITS;
        for (int64_t k = 0; k < points && x->listed; k++) {
            uint64_t there = 0;
            for (int64_t pos = 0, number = k; pos < r->row_len; pos++, number += s->tile) {
                if (x->when && !s->value[x->when - 1].at[number]) continue;
                const bool in = x->from->far[number] != OUTSIDE;
                if ((!in && x->all) || (x->key && x->key->far[number] == OUTSIDE)) x->listed = false;
                there |= (uint64_t)in << pos;
            }
            s->there[phase][k] = there;
        }
    }
}
static void tree_for(const run *r, ready *to, uint64_t there) {
    const uint64_t slot = (there * UINT64_C(0x9e3779b97f4a7c15)) >> 61;
    _Static_assert(TREES == 8, "as many as the bits of a slot give");
    if (r->row_len > BITS) there = 0;
    to->tree = &to->trees[slot];
    to->there = there;
    if (there && there == to->of[slot]) return;
    rp__interp_tree(to->tree, to->rows, r->row_len);
    to->of[slot] = there;
}
static void set_over(ready *to, const plain *x, const planes *s, int64_t pos, int64_t number) {
    const value *v = &s->value[x->over - 1];
    memcpy((char *)to->over + pos * v->size, v->at + number * v->size, v->size);
}
/* The rows of a plain phase over the lanes of a point; false: not so here. */
static bool find_rows(const run *r, const planes *s, unsigned phase, ready *to) {
    const plain *x = &s->plain[phase];
    const table *t = x->from, *k = x->key;
    const int64_t size = r->p->access_size[t->load->access];
    int64_t number = s->row;
    uint64_t there = 0;
    if (x->listed) {
        there = s->there[phase][number];
        if (!there || there != to->there) memset(to->rows, 0, sizeof to->rows);
        for (uint64_t left = there; left; left &= left - 1) {
            const int64_t pos = __builtin_ctzll(left);
            if (x->over) set_over(to, x, s, pos, pos * s->tile + number);
            to->rows[pos] = t->plane + (t->place[pos].first + t->far[pos * s->tile + number]) * size;
            if (k)
                to->keys[pos] =
                    (const int64_t *)(const void *)(k->plane +
                                                    (k->place[pos].first + k->far[pos * s->tile + number]) * 8);
        }
        tree_for(r, to, there);
        return true;
    }
    for (int64_t pos = 0; pos < r->row_len; pos++, number += s->tile) {
        to->rows[pos] = NULL;
        if (x->when && !s->value[x->when - 1].at[number]) continue;
        if (t->far[number] != OUTSIDE)
            to->rows[pos] = t->plane + (t->place[pos].first + t->far[number]) * size;
        else if (x->all)
            return false;
        if (to->rows[pos]) there |= UINT64_C(1) << (pos & (BITS - 1));
        if (x->over) set_over(to, x, s, pos, number);
        if (k && k->far[number] == OUTSIDE) return false;
        if (k) to->keys[pos] = (const int64_t *)(const void *)(k->plane + (k->place[pos].first + k->far[number]) * 8);
        if (!x->place) continue;
        const int64_t n = (int64_t)rp__interp_peek(s->value[x->number - 1].at + number * 8, 8);
        if (n < 0 || n >= INT32_MAX) return false;
        to->numbers[pos] = (int32_t)n;
    }
    if (x->fn) tree_for(r, to, there);
    return true;
}
/* 1 + the position of a point, of `apart`, that leads to element i; 0: none does. */
typedef uint16_t asked __attribute__((vector_size(ASKED * sizeof(uint16_t))));
static inline unsigned leads_to(const uint16_t *reach, int64_t apart, uint16_t i) {
    asked found = {0}, number = {1, 2, 3, 4, 5, 6, 7, 8};
    for (int64_t k = 0; k < apart; k += ASKED) {
        asked at;
        memcpy(&at, reach + k, sizeof at);
        found |= (asked)(at == i) & number;
        number += ASKED;
    }
    uint64_t half[2];
    memcpy(half, &found, sizeof half);
    return (unsigned)(((half[0] | half[1]) * UINT64_C(0x0001000100010001)) >> 48); /* one at most is not 0 */
}
#define FOLLOW(name, T)                                                                                                \
    static void follow_##name(const follow *f, int64_t w, const T *from, const int64_t *key, T *lanes) {               \
        for (int64_t i = 0; i < f->many; i++) {                                                                        \
            const uint64_t k = (uint64_t)key[i] - (uint64_t)f->wanted;                                                 \
            if (k >= (uint64_t)w) continue;                                                                            \
            const unsigned pos = leads_to(f->reach + k * (uint64_t)f->apart, f->apart, (uint16_t)i);                   \
            if (pos) lanes[(int64_t)(pos - 1) * w + (int64_t)k] = from[i];                                             \
        }                                                                                                              \
    }
FOLLOW(f32, float)
FOLLOW(f64, double)
/* Sums by their keys: lanes that no key leads to are 0, as where keys are compared. */
static void run_follow(run *r, planes *s, const plain *x, ready *to) {
    follow *f = &s->follow;
    const rp__insn *load = x->from->load;
    const char *from = x->from->plane + f->from * (int64_t)r->p->access_size[load->access];
    const int64_t *key = (const int64_t *)(const void *)x->key->plane + f->key;
    char *const lanes = r->acc + (int64_t)x->red->at * r->lanes * r->w;
    if (r->p->access_load[load->access]) {
        convert_load(r, load, (char *)f->wide, from, f->many);
        from = (const char *)f->wide;
    }
    for (int64_t pos = 0; pos < r->row_len; pos++) {
        char *const d = lanes + pos * r->w * x->red->size;
        const bool is = f->there >> pos & 1;
        to->rows[pos] = is ? d : NULL;
        if (is) memset(d, 0, (size_t)r->w * x->red->size);
    }
    if (x->red->type == RP__TILE_F64)
        follow_f64(f, r->w, (const double *)(const void *)from, key, (double *)(void *)lanes);
    else
        follow_f32(f, r->w, (const float *)(const void *)from, key, (float *)(void *)lanes);
    tree_for(r, to, f->there);
    char *const d = r->regs[x->red->d].p;
    f->fn(&(rp__window_call){.d = d, .a = to->rows, .tree = to->tree, .n = r->w});
    if (r->b > 1) rp__interp_replicate(r, d, x->red->size);
}
/* Of n lanes, the first of them number `lane` of those under way. */
static void run_plain(run *r, const plain *x, const ready *from, int64_t wanted, int64_t lane, int64_t n) {
    char *d = r->acc + lane * x->red->size;
    if (x->place) {
        const unsigned size = x->from->load->size;
        x->place(&(rp__place_call){.d = (int64_t *)(void *)d,
                                   .largest = r->regs[x->largest].p + lane * size,
                                   .a = from->rows,
                                   .number = from->numbers,
                                   .rows = r->row_len,
                                   .n = n});
    } else {
        x->fn(&(rp__window_call){.d = d,
                                 .a = from->rows,
                                 .tree = from->tree,
                                 .n = n,
                                 .key = x->key ? from->keys : NULL,
                                 .wanted = wanted,
                                 .over = x->over ? from->over : NULL,
                                 .times = x->times});
    }
}
/* `bits` where `when` is false, which is seldom: at edges. */
static void mask(char *d, const char *when, const void *bits, unsigned size, int64_t n) {
    const uint64_t all = UINT64_C(0x0101010101010101);
    for (int64_t k = 0; k < n; k += 8) {
        const int64_t m = n - k < 8 ? n - k : 8;
        if (m == 8 && rp__interp_peek(when + k, 8) == all) continue;
        for (int64_t j = k; j < k + m; j++) {
            if (!when[j]) memcpy(d + j * size, bits, size);
        }
    }
}
/* A plain phase of points side by side: what is not in memory as it is reduced is put together where the lanes would be. */
static void run_windows(run *r, const planes *s, plain *x, ready *to) {
    const table *t = x->from;
    const unsigned a = t->load->access, size = r->p->access_size[a], convert = r->p->access_load[a];
    _Alignas(64) char identity[64], bits[64];
    rp__interp_splat(identity, x->red->identity, x->red->size);
    memcpy(bits, identity, sizeof bits);
    if (convert) r->p->tiles->store_narrow[convert - 1](&(rp__tile_call){.d = bits, .a = identity, .as = 1, .n = 1});
    char *const lanes = r->acc + (int64_t)x->red->at * r->lanes * r->w;
    uint64_t there = 0;
    for (int64_t pos = 0; pos < r->row_len; pos++) {
        const place *at = &t->place[pos];
        char *const d = lanes + pos * r->w * x->red->size;
        to->rows[pos] = x->way[pos] == PASSED     ? NULL
                        : x->way[pos] == IN_PLACE ? t->plane + at->first * (int64_t)size
                                                  : d;
        there |= (uint64_t)(x->way[pos] != PASSED) << pos;
        if (x->way[pos] < GATHERED) continue;
        gather_at(r, d, t->plane, at, t->far + pos * r->w, size, r->w);
        if (x->way[pos] == MASKED) mask(d, s->value[x->when - 1].at + pos * r->w, bits, size, r->w);
    }
    tree_for(r, to, there);
    char *const d = r->regs[x->red->d].p;
    x->fn(&(rp__window_call){.d = d, .a = to->rows, .tree = to->tree, .n = r->w});
    if (r->b > 1) rp__interp_replicate(r, d, x->red->size);
}
static int64_t wanted_of(const planes *s, const plain *x, int64_t point) {
    return x->key ? (int64_t)rp__interp_peek(s->value[s->slot[x->wanted] - 1].at + point * 8, 8) : 0;
}
static void moving_rows(run *r, const planes *s, struct rp__segment g) {
    for (uint32_t k = g.begin; k < g.end; k++) {
        if (!s->still[k]) rp__interp_row(r, (struct rp__segment){k, k + 1});
    }
}
/* The rows of r->w0, with what find_still left. */
static void run_rest(run *r, planes *s) {
    const rp__program *p = r->p;
    for (unsigned v = 0; v < s->n_values && s->width; v++) {
        if (s->value[v].row) r->regs[s->value[v].reg] = of_point(s, v, s->row);
    }
    bool all = s->width > 0;
    for (unsigned phase = 0; phase < p->n_phases && all; phase++)
        all = !is_plain(s, phase) || find_rows(r, s, phase, &s->ready[phase]);
    for (unsigned phase = 0; phase < p->n_phases; phase++) {
        moving_rows(r, s, p->row[phase]);
        if (all && is_plain(s, phase)) {
            const plain *x = &s->plain[phase];
            run_plain(r, x, &s->ready[phase], wanted_of(s, x, s->row), 0, r->w);
            rp__interp_set_result(r, x->red, r->acc);
            continue;
        }
        if (s->follow.is && is_plain(s, phase) && s->plain[phase].keyed) {
            run_follow(r, s, &s->plain[phase], &s->ready[phase]);
            continue;
        }
        if (!s->width && stays_plain(s, phase)) {
            run_windows(r, s, &s->plain[phase], &s->ready[phase]);
            continue;
        }
        rp__interp_begin_chunk(r, phase);
        for (r->pos = 0; r->pos < r->row_len; r->pos += r->b) {
            if (passes(r, s)) continue;
            r->nq = block_at(r, r->pos);
            run_block(r, s, phase);
        }
        for (unsigned k = 0; k < p->n_reductions; k++) {
            const rp__reduction *red = &p->reductions[k];
            if (red->phase == phase) rp__interp_set_result(r, red, rp__interp_finish_chunk(r, red));
        }
    }
    moving_rows(r, s, p->row[p->n_phases]);
    rp__interp_store_rows(r);
}

static bool all_plain(const run *r, const planes *s) {
    bool all = s->width > 0;
    for (unsigned phase = 0; phase < r->p->n_phases && all; phase++) all = is_plain(s, phase);
    return all;
}
static void repeat(char *d, const char *from, unsigned size, int64_t n) {
    _Alignas(64) char block[64];
    rp__interp_splat(block, rp__interp_peek(from, size), size);
    int64_t left = n * size;
    for (; left >= 64; left -= 64, d += 64) memcpy(d, block, 64);
    memcpy(d, block, (size_t)left);
}
/* All lanes of m points from s->row on of the plane under way, side by side, where all phases are plain: what is calculated of rows, and their
   stores, count once for all of them. false: some point is not so, nothing was stored. */
static bool run_points_of_lanes(run *r, planes *s, int64_t m) {
    const rp__program *p = r->p;
    const int64_t first = s->row;
    for (unsigned v = 0; v < s->n_values; v++) {
        const value *x = &s->value[v];
        if (!x->row) continue;
        for (int64_t k = 0; k < m; k++)
            repeat(x->rows + k * s->width * x->size, x->at + (first + k) * x->size, x->size, s->width);
        r->regs[x->reg] = (reg){x->rows, 1};
    }
    bool good = true;
    for (unsigned phase = 0; phase < p->n_phases && good; phase++) {
        const plain *x = &s->plain[phase];
        moving_rows(r, s, p->row[phase]);
        for (int64_t k = 0; k < m && good; k++) {
            s->row = first + k;
            good = find_rows(r, s, phase, &s->ready[phase]);
            if (good) run_plain(r, x, &s->ready[phase], wanted_of(s, x, s->row), k * s->width, s->width);
        }
        if (good) rp__interp_set_result(r, x->red, r->acc);
    }
    s->row = first;
    if (!good) return false;
    moving_rows(r, s, p->row[p->n_phases]);
    rp__interp_store_rows(r);
    return true;
}

/* ---- walks */

static void lay_tile(run *r, int64_t w, char *scratch) {
    enum { ELEMENTS = 512, SIDE_BY_SIDE = 64, BYTES = 20 * 1024 }; /* of tiles and row values, as the walk across has */
    const int64_t bytes = (int64_t)r->p->tile_bytes + r->p->row_bytes + 1;
    int64_t b = 1;
    while (w < SIDE_BY_SIDE && b < RP__LANES && 2 * b * w <= ELEMENTS && 2 * b * w * bytes <= BYTES) b *= 2;
    r->w = w;
    r->b = b;
    r->tile = rp__interp_round64(w * b);
    r->kept_cap = rp__interp_round64(r->row_len * w) + 64;
    rp__interp_lay_out(r, scratch);
}
static void lay_values(planes *s, int64_t positions, char *at) {
    const int64_t w = s->tile;
    for (unsigned t = 0; t < s->n_tables; t++) {
        s->table[t].place = (place *)(void *)at;
        at += rp__interp_round64(positions * (int64_t)sizeof(place));
        s->table[t].far = (uint32_t *)(void *)at;
        at += rp__interp_round64(positions * w * 4);
    }
    for (unsigned v = 0; v < s->n_values; v++) {
        s->value[v].at = at;
        at += rp__interp_round64((s->value[v].row ? 1 : positions) * w * s->value[v].size) + 64 * s->value[v].size;
    }
    s->pass = (uint8_t *)at;
}
/* Points of a tile, so that what they share fits; 0: too few. */
static int64_t fitting(const run *r, const planes *s, int64_t room) {
    int64_t a_point = 1, fixed = 64 + r->row_len;
    for (unsigned v = 0; v < s->n_values; v++) {
        a_point += (s->value[v].row ? 1 : r->row_len) * s->value[v].size;
        fixed += 64 + 64 * s->value[v].size;
    }
    a_point += s->n_tables * r->row_len * 4;
    fixed += s->n_tables * (128 + r->row_len * (int64_t)sizeof(place));
    int64_t w = room > fixed ? (room - fixed) / a_point : 0;
    const int64_t most = rp__interp_across_width(r->p, r->rows, r->row_len);
    if (w > most) w = most;
    if (w > WIDEST) w = WIDEST;
    if (w >= s->points) return s->points;
    return w / 16 * 16;
}
static void take_plane(run *r, planes *s, int64_t number, unsigned dims, int64_t lines) {
    for (unsigned a = 0; a < r->p->n_accesses; a++)
        r->shift[a] = rp__interp_offset(r, a, 0, dims, number) - number * lines;
    for (unsigned t = 0; t < s->n_tables; t++) {
        const unsigned a = s->table[t].load->access;
        s->table[t].plane =
            (const char *)(uintptr_t)r->address[a] +
            (s->width ? rp__interp_offset(r, a, 0, s->first, number / s->points) : r->shift[a] + number * lines) *
                (int64_t)r->p->access_size[a];
    }
}
/* The dim before the points as two, of which the second is points. */
static void split(run *r, planes *s, int64_t part) {
    const unsigned d = s->first, dims = r->dims + 1u;
    for (unsigned e = 0; e < dims; e++) {
        const unsigned from = e < d ? e : e - 1;
        s->extent[e] = e + 1 == d ? r->extent[from] / part : e == d ? part : r->extent[from];
        for (unsigned a = 0; a < r->p->n_accesses; a++)
            s->stride[a * dims + e] = r->stride[a * r->dims + from] * (e + 1 == d ? part : 1);
    }
    r->n_outer++;
    r->dims = dims;
    s->lanes++;
    r->extent = s->extent;
    r->stride = s->stride;
}
/* Lanes and planes first: the points of the first plane are one line. */
static void turn(const run *r, planes *s) {
    unsigned order[RP__SPACE_MAX_DIMS], n = 0;
    for (unsigned d = s->lanes; d < r->n_outer; d++) order[n++] = d;
    for (unsigned d = 0; d < s->lanes; d++) order[n++] = d;
    for (unsigned d = r->n_outer; d < r->dims; d++) order[n++] = d;
    const int64_t words = 4 + r->dims;
    for (unsigned d = 0; d < n; d++) {
        s->extent[d] = r->extent[order[d]];
        for (unsigned a = 0; a < r->p->n_accesses; a++) s->stride[a * r->dims + d] = r->stride[a * r->dims + order[d]];
        for (unsigned k = 0; k < r->p->n_windows; k++)
            s->windows[k * words + 4 + d] = r->windows[k * words + 4 + order[d]];
    }
    for (unsigned k = 0; k < r->p->n_windows; k++)
        memcpy(&s->windows[k * words], &r->windows[k * words], 4 * sizeof(int64_t));
}
/* Points [from, to) of planes [first, last). */
static void run_points(run *r, planes *s, int64_t first, int64_t last, int64_t from, int64_t to, char *scratch) {
    for (int64_t at = from; at < to; at += s->tile) {
        const int64_t w = to - at < s->tile ? to - at : s->tile;
        lay_tile(r, w, scratch);
        r->w0 = at;
        const bool good = find_still(r, s);
        const plain *keyed = keyed_phase(r, s);
        if (good) find_idle(r, s);
        if (good) find_ways(r, s);
        for (unsigned phase = 0; phase < PLAIN; phase++) memset(s->ready[phase].of, 0, sizeof s->ready[phase].of);
        s->follow.is = good && keyed && find_follow(r, s, keyed);
        for (int64_t plane = first; plane < last; plane++) {
            take_plane(r, s, plane, s->first, s->points);
            r->w0 = plane * s->points + at;
            if (good)
                run_rest(r, s);
            else
                rp__interp_phases(r);
        }
    }
}
/* Windows that move by parts of a place, as those of gradients: of the points those that lie a step apart have the same positions in
   memory and pass over the same. Points of each dim that count as one; false: nothing moves so, or in too many parts. */
static bool strides_of(const run *r, const planes *s, int64_t step[RP__SPACE_MAX_DIMS]) {
    enum { MOST_STEP = 8, PARTS = 27 };
    int64_t parts = 1;
    for (unsigned d = 0; d < r->dims; d++) {
        step[d] = 1;
        for (unsigned k = 0; k < r->p->n_windows && d >= s->first && d < r->n_outer; k++) {
            const int64_t *w = r->windows + k * (4 + r->dims), divisor = w[3];
            while (w[4 + d] * step[d] % divisor && step[d] <= MOST_STEP) step[d]++;
        }
        if (step[d] > MOST_STEP || step[d] > r->extent[d]) return false;
        parts *= step[d];
        if (parts > PARTS) return false;
    }
    return parts > 1 && parts * LEAST_POINTS <= s->points;
}
/* The points of which `at` is the first, each `step` from the next. */
static void take_part(run *r, planes *s, const int64_t *const own[3], const uint64_t *address, const int64_t *step,
                      const int64_t *at) {
    const unsigned words = 4u + r->dims;
    for (unsigned a = 0; a < r->p->n_accesses; a++) s->address[a] = address[a];
    memcpy(s->windows, own[2], (size_t)r->p->n_windows * words * sizeof *s->windows);
    for (unsigned d = 0; d < r->dims; d++) {
        s->extent[d] = (own[0][d] - at[d] + step[d] - 1) / step[d];
        for (unsigned a = 0; a < r->p->n_accesses; a++) {
            const int64_t stride = own[1][a * r->dims + d], size = r->p->access_iota[a] ? 1 : r->p->access_size[a];
            s->stride[a * r->dims + d] = stride * step[d];
            s->address[a] += (uint64_t)(at[d] * stride * size);
        }
        for (unsigned k = 0; k < r->p->n_windows; k++) {
            int64_t *w = s->windows + k * words;
            w[2] -= at[d] * w[4 + d];
            w[4 + d] *= step[d];
        }
    }
    s->points = size_of_dims(s->extent, s->first, r->n_outer);
    r->extent = s->extent;
    r->stride = s->stride;
    r->windows = s->windows;
    r->address = s->address;
    rp__interp_begin_walk(r);
    r->d0 = s->first;
    rp__interp_forms(r);
}
static void run_parts(run *r, planes *s, const int64_t *step, int64_t first, int64_t last, char *scratch) {
    const int64_t *const own[] = {r->extent, r->stride, r->windows};
    const uint64_t *const address = r->address;
    const int64_t points = s->points, tile = s->tile;
    int64_t at[RP__SPACE_MAX_DIMS] = {0};
    for (unsigned d = 0; d < r->dims;) {
        take_part(r, s, own, address, step, at);
        s->tile = tile < s->points ? tile : s->points;
        run_points(r, s, first, last, 0, s->points, scratch);
        for (d = 0; d < r->dims && ++at[d] == step[d]; d++) at[d] = 0;
    }
    s->points = points;
    s->tile = tile;
    r->extent = own[0];
    r->stride = own[1];
    r->windows = own[2];
    r->address = address;
    rp__interp_begin_walk(r);
    r->d0 = s->first;
    rp__interp_forms(r);
}
static void run_lanes(run *r, planes *s, int64_t first, int64_t last, int64_t from, int64_t to, char *scratch) {
    const int64_t *const own[] = {r->extent, r->stride, r->windows};
    const bool plain_all = all_plain(r, s);
    const int64_t lanes = rp__interp_across_width(r->p, plain_all ? s->width * s->tile : s->width, r->row_len);
    for (int64_t at = from; at < to; at += s->tile) {
        const int64_t w = to - at < s->tile ? to - at : s->tile, room = s->tile;
        lay_tile(r, w, scratch);
        r->w0 = at;
        r->extent = s->extent;
        r->stride = s->stride;
        r->windows = s->windows;
        s->tile = w;
        const bool good = find_still(r, s);
        for (unsigned v = 0; v < s->n_values; v++) {
            if (s->value[v].row) memcpy(s->value[v].at, r->regs[s->value[v].reg].p, (size_t)w * s->value[v].size);
        }
        r->extent = own[0];
        r->stride = own[1];
        r->windows = own[2];
        lay_tile(r, lanes, scratch);
        r->b = 1;
        for (unsigned v = 0; v < s->n_values; v++) {
            if (s->value[v].row) s->value[v].rows = r->regs[s->value[v].reg].p;
        }
        list_rows(r, s, w);
        const int64_t together = plain_all ? lanes / s->width : 0;
        for (int64_t plane = first; plane < last; plane++) {
            for (s->row = 0; s->row < w; s->row++) {
                const int64_t point = plane * s->points + at + s->row;
                const int64_t m = together < w - s->row ? together : w - s->row;
                take_plane(r, s, point, s->lanes, s->width);
                if (m > 1) {
                    r->w0 = point * s->width;
                    r->w = m * s->width;
                    if (good && run_points_of_lanes(r, s, m)) {
                        s->row += m - 1;
                        continue;
                    }
                }
                for (int64_t c = 0; c < s->width; c += r->w) {
                    r->w0 = point * s->width + c;
                    r->w = s->width - c < lanes ? s->width - c : lanes;
                    if (good)
                        run_rest(r, s);
                    else
                        rp__interp_phases(r);
                    for (unsigned t = 0; t < s->n_tables; t++)
                        s->table[t].plane += r->w * r->p->access_size[s->table[t].load->access];
                }
            }
        }
        s->tile = room;
    }
}

/* All dims before the inner ones are planes, and channels are the last: one point, whose places are counted (the place of the largest of all). */
static bool one_point(const rp__program *p, const rp__dims *x, rp__planes *out) {
    const unsigned last = x->n_outer - 1;
    bool counted = false;
    for (unsigned a = 0; a < p->n_accesses; a++) counted = counted || p->access_iota[a];
    if (!x->n_outer || !counted || p->largest.phase || p->plan == RP__PLAN_ELEMENTS || x->extent[last] < LEAST_LANES)
        return false;
    for (unsigned d = 0; d < x->n_outer; d++) {
        if (!dim_stands(p, x, d)) return false;
    }
    *out = (rp__planes){.first = last,
                        .lanes = last,
                        .split = 1,
                        .planes = size_of_dims(x->extent, 0, last),
                        .points = 1,
                        .width = x->extent[last]};
    return true;
}

bool rp__interp_planes_off;
_Atomic(uint64_t) rp__interp_planes_taken;
bool rp__interp_by_planes(run *r, int64_t first, int64_t last, char *scratch) {
    const rp__program *p = r->p;
    planes *s = (planes *)(void *)(scratch + RP__INTERP_BYTES);
    rp__planes x;
    const rp__dims dims = {r->n_outer, r->dims, r->extent, r->stride, r->windows};
    if (p->grouped || p->serial || p->n_scans || !p->n_phases || p->n_regs > MOST || p->n_insns > MOST ||
        rp__interp_planes_off)
        return false;
    const bool one = one_point(p, &dims, &x);
    if (!one && (!rp__interp_planes(p, &dims, &x) || (x.width && p->plan == RP__PLAN_ELEMENTS))) return false;
    s->first = x.first;
    s->lanes = x.lanes;
    s->width = x.width;
    s->one = one;
    const int64_t points = s->points = x.points;
    const int64_t unit = s->width ? s->width : 1;
    if (first % unit || last % unit || (!s->width && last - first < LEAST_PLANES * points)) return false;
    if (x.split > 1) split(r, s, x.split);
    const rp__walk was = r->walk;
    r->walk = RP__WALK_ACROSS;
    rp__interp_begin_walk(r);
    r->d0 = s->width ? s->lanes : s->first;
    rp__interp_forms(r);
    bool fits = r->row_len > 0 && r->row_len <= RP__CHUNK && !r->copied && part(r, s);
    char *const at = (char *)s + (sizeof *s + 63) / 64 * 64;
    s->tile = fits ? fitting(r, s, scratch + RP__INTERP_BYTES + RP__INTERP_PLANES - at) : 0;
    if (!s->tile) {
        r->walk = was;
        return false;
    }
    lay_values(s, r->row_len, at);
    memset(s->zeros, 0, sizeof s->zeros);
    memset(r->flat, 0, sizeof r->flat);
    r->w = r->b = r->nq = 1;
    lay_tile(r, 1, scratch);
    rp__interp_uniform(r);
    s->idle = idle_when(r, s);
    find_plains(r, s);
    if (one && !all_plain(r, s)) return false;
    atomic_fetch_add_explicit(&rp__interp_planes_taken, 1, memory_order_relaxed);
    int64_t step[RP__SPACE_MAX_DIMS];
    bool apart = !s->width && s->idle && strides_of(r, s, step);
    if (apart && keyed_phase(r, s)) { /* these need all points side by side */
        lay_tile(r, s->tile, scratch);
        r->w0 = 0;
        apart = !find_still(r, s) || !find_follow(r, s, keyed_phase(r, s));
    }
    s->follow.is = false;
    if (s->width) turn(r, s);
    for (int64_t k = first / unit, end = last / unit; k < end;) {
        const int64_t plane = k / points, from = k % points;
        const int64_t whole = from ? 0 : (end - k) / points, to = whole                       ? points
                                                                  : from + (end - k) < points ? from + (end - k)
                                                                                              : points;
        if (s->width)
            run_lanes(r, s, plane, plane + (whole ? whole : 1), from, to, scratch);
        else if (whole && apart)
            run_parts(r, s, step, plane, plane + whole, scratch);
        else
            run_points(r, s, plane, plane + (whole ? whole : 1), from, to, scratch);
        k += whole ? whole * points : to - from;
    }
    return true;
}
