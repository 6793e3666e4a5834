/* Elements as rows of the last dim (interp_parts.h): programs with loads at computed places, as embeddings, index_select and gathers of
   whole rows are. What stands still along that dim, the places above all, is calculated for many rows at once, one element a row; then
   each row runs the rest of the program with it. Where the rest is a copy, it is one of memory, a row a call; where it is a sum of rows at
   such places, each times what stands still (an image at other places whose channels lie last), it is one routine a row; where it is one value but for
   one place, which is compared with a number that stands still (gradients of a choice, one_hot), it is a fill and an element.
   The other way round, where it is the dim before the last along which much stands still (channels of an image that is sampled by a grid): that is
   calculated for a tile of the last dim, and the rest of the program runs with it once a channel. */
#include "kernel/cpu/interp_parts.h"

typedef rp__interp run;
typedef rp__interp_reg reg;

enum {
    SHORT = 32,  /* rows shorter than this are not worth a tile each, */
    COPY = 4,    /* nor those shorter than this a copy each, */
    WEIGHED = 8, /* or a sum; */
    TERMS = 16,  /* of a sum at most */
    AHEAD = 8    /* rows whose memory is asked for before they are copied: nothing else foresees where they lie */
};
enum { MOVING, STILL, UNIFORM }; /* of registers */

typedef struct parts {
    unsigned along;    /* the dim */
    unsigned n_still;  /* values that stand still, */
    unsigned n_values; /* and those of them that moving instructions read */
    struct {
        uint16_t reg;
        uint8_t size;
        reg at; /* of the rows under way */
    } value[RP__INTERP_STILL_VALUES];
    const rp__insn
        *load;     /* all that moves is this load and one store of what it gives as it is; NULL: more than that */
    bool sums;     /* it is a sum of rows, and its store */
    bool computed; /* there are loads at computed places */
    uint8_t of[RP__DAG_MAX_NODES];
} parts;

static bool is_still(const run *r, const parts *s, unsigned access) { return !r->stride[access * r->dims + s->along]; }
static bool last_dense(const run *r, unsigned access) { return r->stride[access * r->dims + r->dims - 1] == 1; }
static bool stands(const parts *s, uint16_t v) { return v == RP__NO_VAL || s->of[v] != MOVING; }
static bool insn_stands(const run *r, const parts *s, const rp__insn *i) {
    bool all = true;
    switch (i->kind) {
    case RP__INSN_LOAD: return stands(s, i->a) && stands(s, i->b) && is_still(r, s, i->access);
    case RP__INSN_IOTA: return is_still(r, s, i->access);
    case RP__INSN_OP: return stands(s, i->a) && stands(s, i->b) && stands(s, i->c);
    case RP__INSN_GROUP:
        for (unsigned k = 0; k < r->p->groups[i->access].n_inputs; k++)
            all = all && stands(s, r->p->groups[i->access].inputs[k]);
        return all;
    default: return false;
    }
}
/* A moving instruction reads register v. */
static void reads(parts *s, const uint8_t *size, uint16_t v) {
    if (v == RP__NO_VAL || s->of[v] != STILL) return;
    for (unsigned k = 0; k < s->n_values; k++) {
        if (s->value[k].reg == v) return;
    }
    s->value[s->n_values].reg = v;
    s->value[s->n_values++].size = size[v];
}
static void operands_read(const run *r, parts *s, const uint8_t *size, const rp__insn *i) {
    if (i->kind == RP__INSN_GROUP) {
        const rp__group *g = &r->p->groups[i->access];
        for (unsigned k = 0; k < g->n_inputs; k++) reads(s, size, g->inputs[k]);
        return;
    }
    const rp__program_store *st = i->kind == RP__INSN_STORE ? &r->p->stores[i->access] : NULL;
    reads(s, size, st ? st->value : i->a);
    reads(s, size, st ? st->offset : i->b);
    reads(s, size, st ? st->predicate : i->c);
}
static bool result(parts *s, uint8_t *sizes, uint16_t v, uint8_t size) {
    if (s->n_still++ == RP__INTERP_STILL_VALUES) return false;
    s->of[v] = STILL;
    sizes[v] = size;
    return true;
}
/* The load of a program whose moving part copies. Narrow types go through those that they are calculated in and come back as they were;
   bools become 0 or 1 on the way. */
static const rp__insn *copy_of(const run *r, const parts *s) {
    const rp__program *p = r->p;
    const rp__insn *load = NULL, *store = NULL;
    const struct rp__segment all = p->element[0];
    for (uint32_t k = all.begin; k < all.end; k++) {
        const rp__insn *i = &p->insns[k];
        if (r->moves[k - all.begin] != RP__INTERP_MOVING) continue;
        if (i->kind == RP__INSN_LOAD && !load && i->b == RP__NO_VAL && stands(s, i->a) && last_dense(r, i->access))
            load = i;
        else if (i->kind == RP__INSN_STORE && load && !store)
            store = i;
        else
            return NULL;
    }
    if (!store) return NULL;
    const rp__program_store *st = &p->stores[store->access];
    return st->value == load->d && st->offset == RP__NO_VAL && st->predicate == RP__NO_VAL &&
                   st->mode == RP__STORE_SET && last_dense(r, st->access) && st->size == p->access_size[load->access] &&
                   p->access_load[load->access] == p->access_narrow[st->access]
               ? load
               : NULL;
}
/* The rest of a program that is ((row 0 * weight 0 + row 1 * weight 1) + row 2 * weight 2) + ..., and its store. */
typedef struct sum {
    unsigned n;
    struct {
        const rp__insn *load;
        uint16_t weight;
        reg at, places, is; /* weights, places and predicates of the rows under way */
    } term[TERMS];
    rp__weigh_fn *fn;
} sum;
static bool is_f32(const run *r, const rp__insn *i, rp__prim op) {
    return i->kind == RP__INSN_OP && i->fn == r->p->tiles->op[op][RP__TILE_F32];
}
/* of: 1 + number of a load's row, of a row times its weight, or 1 of the sum as far as it goes. */
typedef struct summed {
    uint8_t row[RP__DAG_MAX_NODES], term[RP__DAG_MAX_NODES], sum[RP__DAG_MAX_NODES];
} summed;
static bool take_term(sum *t, summed *of, const rp__insn *i, sum *in) {
    const unsigned k = of->term[i->b] ? of->term[i->b] : of->term[i->a];
    const uint16_t before = of->term[i->b] ? i->a : i->b;
    if (!k) return false;
    if (in->n == 0 && of->term[before])
        in->term[in->n++] = t->term[of->term[before] - 1];
    else if (!of->sum[before])
        return false;
    if (in->n == TERMS) return false;
    of->sum[before] = 0;
    in->term[in->n++] = t->term[k - 1];
    of->sum[i->d] = 1;
    return true;
}
static bool sum_of(const run *r, const parts *s, sum *found) {
    const rp__program *p = r->p;
    const struct rp__segment all = p->element[0];
    const rp__program_store *st = NULL;
    unsigned loads = 0;
    sum rows = {.n = 0};
    summed of;
    if (rp__interp_planes_off) return false;
    memset(&of, 0, sizeof of);
    found->n = 0;
    for (uint32_t k = all.begin; k < all.end; k++) {
        const rp__insn *i = &p->insns[k];
        if (r->moves[k - all.begin] != RP__INTERP_MOVING) continue;
        if (st) return false;
        if (i->kind == RP__INSN_LOAD) {
            if (i->a == RP__NO_VAL || !stands(s, i->a) || !stands(s, i->b) || !last_dense(r, i->access) ||
                i->type != RP__TILE_F32 || p->access_load[i->access] > RP__LOAD_BF16 || loads == TERMS ||
                (loads && p->access_load[i->access] != p->access_load[rows.term[0].load->access]))
                return false;
            rows.term[loads++].load = i;
            of.row[i->d] = (uint8_t)loads;
        } else if (is_f32(r, i, RP__MUL)) {
            const uint16_t row = of.row[i->a] ? i->a : i->b, weight = of.row[i->a] ? i->b : i->a;
            if (!of.row[row] || s->of[weight] == MOVING) return false;
            rows.term[of.row[row] - 1].weight = weight;
            of.term[i->d] = of.row[row];
            of.row[row] = 0; /* a row is one term */
        } else if (is_f32(r, i, RP__ADD)) {
            if (!take_term(&rows, &of, i, found)) return false;
        } else if (i->kind == RP__INSN_STORE) {
            st = &p->stores[i->access];
            if (!of.sum[st->value]) return false;
        } else {
            return false;
        }
    }
    if (!st || found->n != loads || st->offset != RP__NO_VAL || st->predicate != RP__NO_VAL ||
        st->mode != RP__STORE_SET || !last_dense(r, st->access) || r->extent[r->dims - 1] * 8 > RP__INTERP_PLANES)
        return false;
    found->fn = p->tiles->weigh[p->access_load[found->term[0].load->access]];
    return true;
}
/* The rest of a program that is WHERE(factor * index + offset == number, one, other), or that comparison as a number, and its store. */
typedef struct choice {
    int64_t factor, offset; /* of the index of the last dim; what it counts along other dims is in the iota's base */
    unsigned iota;
    uint16_t number, one, other;
    uint8_t size;
    char truth[2][64]; /* of a comparison: 0 and 1 as the store has them; one and other are not values then */
} choice;
static bool uniform_i64(const run *r, const parts *s, uint16_t v, int64_t *is) {
    if (v == RP__NO_VAL || s->of[v] != UNIFORM) return false;
    memcpy(is, r->regs[v].p, 8);
    return true;
}
static bool is_i64(const run *r, const rp__insn *i, rp__prim op) {
    return i->kind == RP__INSN_OP && i->fn == r->p->tiles->op[op][RP__TILE_I64];
}
/* Uniform registers are set. */
static bool choice_of(const run *r, const parts *s, choice *c) {
    const rp__program *p = r->p;
    const struct rp__segment all = p->element[0];
    uint16_t counted = RP__NO_VAL, equal = RP__NO_VAL, chosen = RP__NO_VAL;
    const rp__program_store *st = NULL;
    if (rp__interp_planes_off || p->n_stores != 1) return false;
    for (uint32_t k = all.begin; k < all.end; k++) {
        const rp__insn *i = &p->insns[k];
        int64_t by;
        if (r->moves[k - all.begin] != RP__INTERP_MOVING) continue;
        if (st) return false;
        if (i->kind == RP__INSN_IOTA && counted == RP__NO_VAL) {
            c->iota = i->access;
            c->factor = 1, c->offset = 0;
            counted = i->d;
        } else if (is_i64(r, i, RP__MUL) && counted != RP__NO_VAL && (i->a == counted || i->b == counted) &&
                   uniform_i64(r, s, i->a == counted ? i->b : i->a, &by)) {
            c->factor = (int64_t)((uint64_t)c->factor * (uint64_t)by);
            c->offset = (int64_t)((uint64_t)c->offset * (uint64_t)by);
            counted = i->d;
        } else if (is_i64(r, i, RP__ADD) && counted != RP__NO_VAL && (i->a == counted || i->b == counted) &&
                   uniform_i64(r, s, i->a == counted ? i->b : i->a, &by)) {
            c->offset = (int64_t)((uint64_t)c->offset + (uint64_t)by);
            counted = i->d;
        } else if (is_i64(r, i, RP__EQ) && counted != RP__NO_VAL && (i->a == counted || i->b == counted)) {
            c->number = i->a == counted ? i->b : i->a;
            equal = i->d;
            if (c->number == counted || s->of[c->number] == MOVING) return false;
        } else if (equal != RP__NO_VAL && i->kind == RP__INSN_OP && i->a == equal &&
                   i->fn == p->tiles->op[RP__WHERE][i->type] && s->of[i->b] != MOVING && s->of[i->c] != MOVING) {
            c->one = i->b, c->other = i->c;
            c->size = i->size;
            chosen = i->d;
        } else if (equal != RP__NO_VAL && chosen == RP__NO_VAL && i->kind == RP__INSN_OP && i->a == equal &&
                   i->fn == p->tiles->cast[RP__TILE_BOOL][i->type]) {
            _Alignas(64) char wide[2][64 * 8], is[64];
            for (int truth = 0; truth < 2; truth++) {
                memset(is, truth, sizeof is);
                i->fn(&(rp__tile_call){.d = wide[truth], .a = is, .n = 1});
                memcpy(c->truth[truth], wide[truth], sizeof c->truth[truth]);
            }
            c->one = c->other = RP__NO_VAL;
            c->size = i->size;
            chosen = i->d;
        } else if (i->kind == RP__INSN_STORE && chosen != RP__NO_VAL) {
            st = &p->stores[i->access];
        } else {
            return false;
        }
    }
    return st && st->value == chosen && st->offset == RP__NO_VAL && st->predicate == RP__NO_VAL &&
           st->mode == RP__STORE_SET && last_dense(r, st->access) && !p->access_narrow[st->access] &&
           r->stride[c->iota * r->dims + r->dims - 1] == 1 && (c->factor == 1 || c->factor == -1);
}
/* Parts the program by what stands still along a dim; false: that is nothing, or too much. */
static bool part(run *r, parts *s, unsigned along) {
    const rp__program *p = r->p;
    const struct rp__segment all = p->n_phases == 1 ? p->element[0] : (struct rp__segment){0, 0};
    bool computed = false, counted = false, still = false;
    s->along = along;
    if (p->n_windows || all.end - all.begin > RP__INTERP_PARTED) return false;
    for (uint32_t k = all.begin; k < all.end; k++)
        computed = computed || (p->insns[k].kind == RP__INSN_LOAD && p->insns[k].a != RP__NO_VAL);
    for (uint32_t k = all.begin; k < all.end; k++)
        counted = counted || (along + 1 == r->dims && p->insns[k].kind == RP__INSN_IOTA);
    for (unsigned a = 0; a < p->n_accesses; a++) still = still || is_still(r, s, a);
    s->computed = computed;
    if ((!computed && !counted) || !still) return false;
    uint8_t size[RP__DAG_MAX_NODES];
    s->n_still = s->n_values = 0;
    memset(s->of, MOVING, p->n_regs);
    for (uint32_t k = 0; k < p->uniform_end; k++) s->of[p->insns[k].d] = UNIFORM;
    for (uint32_t k = all.begin; k < all.end; k++) {
        const rp__insn *i = &p->insns[k];
        const bool stays = insn_stands(r, s, i);
        r->moves[k - all.begin] = stays ? RP__INTERP_STILL : RP__INTERP_MOVING;
        const rp__group *g = stays && i->kind == RP__INSN_GROUP ? &p->groups[i->access] : NULL;
        if (!stays) operands_read(r, s, size, i);
        if (stays && !g && !result(s, size, i->d, i->size)) return false;
        for (unsigned n = 0; g && n < g->n_outputs; n++) {
            if (!result(s, size, g->outputs[n].d, g->outputs[n].size)) return false;
        }
    }
    return true;
}

/* What tiles walk over: the rows, one element each, or the elements of one. */
typedef struct way {
    uint8_t form[RP__DAG_MAX_ACCESSES];
    bool direct[RP__DAG_MAX_ACCESSES];
} way;
static void take_way(run *r, const way *w, bool rows) {
    r->d0 = rows ? 0 : r->n_outer;
    r->d1 = rows ? r->n_outer : r->dims;
    r->part = rows ? RP__INTERP_STILL : RP__INTERP_MOVING;
    memcpy(r->form, w->form, sizeof w->form);
    memcpy(r->direct, w->direct, sizeof w->direct);
}

/* Elements [first, last) of the copy, of rows [row, end), whose places the registers hold, n places from row `row` on. */
static void copy_rows(run *r, const rp__insn *load, int64_t row, int64_t end, int64_t first, int64_t last) {
    const rp__program *p = r->p;
    const unsigned from = load->access, to = p->stores[0].access, d = r->n_outer - 1;
    const int64_t length = r->extent[r->n_outer], size = p->access_size[from], begin = row;
    const int64_t from_step = r->stride[from * r->dims + d] * size, to_step = r->stride[to * r->dims + d] * size;
    static const int64_t none = 0;
    const int64_t *place = &none;
    int64_t step = 0;
    if (load->a != RP__NO_VAL) {
        place = (const int64_t *)(const void *)r->regs[load->a].p;
        step = r->regs[load->a].step;
    }
    while (row < end) { /* a stretch of rows along their last dim */
        const int64_t left = r->extent[d] - row % r->extent[d], stop = end - row < left ? end : row + left;
        rp__interp_set_row(r, row);
        const char *source = r->base[from];
        char *target = r->base[to];
        for (; row < stop; row++, source += from_step, target += to_step) {
            const int64_t start = first - row * length, over = last - row * length;
            const int64_t lo = start > 0 ? start : 0, hi = over < length ? over : length;
            if (row + AHEAD < stop) {
                const char *later = source + AHEAD * from_step + place[(row + AHEAD - begin) * step] * size;
                __builtin_prefetch(later);
                __builtin_prefetch(later + 64);
            }
            memcpy(target + lo * size, source + (place[(row - begin) * step] + lo) * size, (size_t)((hi - lo) * size));
        }
    }
}
/* Elements [first, last) of the sum, of rows [row, end), whose places and weights the registers hold. room: a row of zeros and one of float. */
static void weigh_rows(run *r, sum *t, char *room, int64_t row, int64_t end, int64_t first, int64_t last) {
    const rp__program *p = r->p;
    const rp__program_store *st = &p->stores[0];
    const unsigned load = t->term[0].load->access, to = st->access, d = r->n_outer - 1, narrow = p->access_narrow[to];
    const int64_t length = r->extent[r->n_outer], from_size = p->access_size[load], begin = row;
    const int64_t to_step = r->stride[to * r->dims + d] * st->size;
    float *const wide = (float *)(void *)(room + length * 4);
    for (unsigned k = 0; k < t->n; k++) {
        const rp__insn *i = t->term[k].load;
        t->term[k].at = r->regs[t->term[k].weight];
        t->term[k].places = r->regs[i->a];
        if (i->b != RP__NO_VAL) t->term[k].is = r->regs[i->b];
    }
    while (row < end) { /* a stretch of rows along their last dim */
        const int64_t left = r->extent[d] - row % r->extent[d], stop = end - row < left ? end : row + left;
        rp__interp_set_row(r, row);
        for (int64_t k = 0; row < stop; row++, k++) {
            const int64_t start = first - row * length, over = last - row * length, number = row - begin;
            const int64_t lo = start > 0 ? start : 0, hi = over < length ? over : length;
            const void *rows[TERMS];
            float weights[TERMS];
            for (unsigned n = 0; n < t->n; n++) {
                const rp__insn *i = t->term[n].load;
                const reg at = t->term[n].places, is = t->term[n].is;
                const int64_t place = ((const int64_t *)(const void *)at.p)[number * at.step];
                const char *source = r->base[i->access] + (k * r->stride[i->access * r->dims + d] + place) * from_size;
                rows[n] = i->b == RP__NO_VAL || is.p[number * is.step] ? source + lo * from_size : room;
                weights[n] = ((const float *)(const void *)t->term[n].at.p)[number * t->term[n].at.step];
            }
            char *target = r->base[to] + k * to_step + lo * st->size;
            t->fn(&(rp__weigh_call){narrow ? wide : (void *)target, rows, weights, t->n, hi - lo});
            if (narrow)
                p->tiles->store_narrow[narrow - 1](&(rp__tile_call){.d = target, .a = wide, .as = 1, .n = hi - lo});
        }
    }
}
/* Elements [first, last) of the choice, of rows [row, end), whose numbers and values the registers hold. */
static void choose_rows(run *r, const choice *c, int64_t row, int64_t end, int64_t first, int64_t last) {
    const rp__program_store *st = &r->p->stores[0];
    const bool truth = c->one == RP__NO_VAL;
    char stands[2][64];
    memcpy(stands, c->truth, sizeof stands);
    const reg number = r->regs[c->number], one = truth ? (reg){stands[1], 0} : r->regs[c->one],
              other = truth ? (reg){stands[0], 0} : r->regs[c->other];
    const int64_t length = r->extent[r->n_outer], begin = row;
    for (; row < end; row++) {
        const int64_t start = first - row * length, over = last - row * length, k = row - begin;
        const int64_t lo = start > 0 ? start : 0, hi = over < length ? over : length;
        uint64_t wanted;
        _Alignas(64) char block[64];
        rp__interp_set_row(r, row);
        char *const to = r->base[st->access];
        rp__interp_splat(block, rp__interp_peek(other.p + k * other.step * c->size, c->size), c->size);
        const int64_t bytes = hi * c->size;
        int64_t at = lo * c->size;
        for (; at + 64 <= bytes; at += 64) memcpy(to + at, block, 64);
        memcpy(to + at, block, (size_t)(bytes - at));
        memcpy(&wanted, number.p + k * number.step * 8, 8);
        wanted = (wanted - (uint64_t)c->offset) * (uint64_t)c->factor - (uint64_t)(uintptr_t)r->base[c->iota];
        if (wanted >= (uint64_t)lo && wanted < (uint64_t)hi)
            memcpy(to + (int64_t)wanted * c->size, one.p + k * one.step * c->size, c->size);
    }
}
static void move_rows(run *r, parts *s, char *blocks, int64_t row, int64_t end, int64_t first, int64_t last) {
    const rp__program *p = r->p;
    const unsigned outer = r->n_outer - 1;
    const int64_t length = r->extent[r->n_outer], begin = row;
    const struct rp__segment all = p->element[0];
    uint16_t list[RP__INTERP_PARTED];
    int64_t step[RP__DAG_MAX_ACCESSES]; /* from row to row */
    unsigned count = 0;
    for (uint32_t k = all.begin; k < all.end; k++) {
        if (r->moves[k - all.begin] & RP__INTERP_MOVING) list[count++] = (uint16_t)(k - all.begin);
    }
    for (unsigned a = 0; a < p->n_accesses; a++)
        step[a] = r->stride[a * r->dims + outer] * (p->access_iota[a] ? 1 : p->access_size[a]);
    for (unsigned v = 0; v < s->n_values; v++) {
        s->value[v].at = r->regs[s->value[v].reg];
        r->regs[s->value[v].reg] = (reg){blocks + 64 * (size_t)v, 0};
    }
    for (bool placed = false; row < end; row++) {
        const int64_t start = first - row * length, over = last - row * length;
        const int64_t lo = start > 0 ? start : 0, hi = over < length ? over : length;
        for (unsigned v = 0; v < s->n_values; v++) {
            const unsigned size = s->value[v].size;
            const char *at = s->value[v].at.p + s->value[v].at.step * (row - begin) * size;
            rp__interp_splat(blocks + 64 * (size_t)v, rp__interp_peek(at, size), size);
        }
        if (!placed || row % r->extent[outer] == 0)
            rp__interp_set_row(r, row);
        else
            for (unsigned a = 0; a < p->n_accesses; a++) /* of an iota a number */
                r->base[a] = (char *)(uintptr_t)((uint64_t)(uintptr_t)r->base[a] + (uint64_t)step[a]);
        placed = true;
        for (int64_t pos = lo; pos < hi; pos += r->tile) {
            r->pos = pos;
            rp__interp_listed(r, list, count, hi - pos < r->tile ? hi - pos : r->tile);
        }
    }
}

/* ---- the other way round */

/* Are there loads whose places stand still, which are what this is for? */
static bool places_stand(const run *r, const parts *s) {
    const struct rp__segment all = r->p->element[0];
    for (uint32_t k = all.begin; k < all.end; k++) {
        const rp__insn *i = &r->p->insns[k];
        if (i->kind == RP__INSN_LOAD && i->a != RP__NO_VAL && s->of[i->a] == STILL &&
            r->moves[k - all.begin] == RP__INTERP_MOVING)
            return true;
    }
    return false;
}
/* Elements [from, to) of the last dim, of rows [row, end). */
static void run_beside(run *r, const way *none, const way *elements, int64_t row, int64_t end, int64_t from,
                       int64_t to) {
    const int64_t at_once = r->tile < RP__INTERP_STILL_ROWS ? r->tile : RP__INTERP_STILL_ROWS;
    for (int64_t pos = from; pos < to; pos += at_once) {
        const int64_t n = to - pos < at_once ? to - pos : at_once;
        r->pos = pos;
        r->part = RP__INTERP_STILL;
        memcpy(r->direct, none->direct, sizeof r->direct);
        r->apart = r->kept;
        rp__interp_set_row(r, row);
        rp__interp_element(r, 0, n);
        r->part = RP__INTERP_MOVING;
        memcpy(r->direct, elements->direct, sizeof r->direct);
        for (int64_t k = row; k < end; k++) {
            rp__interp_set_row(r, k);
            rp__interp_element(r, 0, n);
        }
    }
}
static bool by_channels(run *r, int64_t first, int64_t last, char *scratch) {
    enum { FEW = 3, LEAST = 16 };
    parts s;
    way none = {.direct = {0}}, elements;
    const unsigned dims = r->dims;
    for (unsigned k = 0; k < r->p->n_stores; k++) /* who comes last, or in which order, is another one here */
        if (r->p->stores[k].offset != RP__NO_VAL || r->p->stores[k].mode != RP__STORE_SET) return false;
    if (dims < 2 || r->extent[dims - 2] < FEW || r->extent[dims - 1] < LEAST || !part(r, &s, dims - 2) ||
        !places_stand(r, &s))
        return false;
    const int64_t length = r->extent[dims - 1], channels = r->extent[dims - 2];
    r->walk = RP__WALK_ALONG;
    r->n_outer = dims - 1;
    rp__interp_begin_walk(r);
    memcpy(elements.direct, r->direct, sizeof r->direct);
    r->w = r->b = r->nq = 1;
    r->tile = rp__interp_tile_for(r->p, RP__INTERP_STILL_ROWS);
    rp__interp_lay_out(r, scratch);
    rp__interp_uniform(r);
    for (int64_t at = first; at < last;) { /* whole rows up to the last channel, or a part of one */
        const int64_t row = at / length, begin = at % length, left = last - row * length;
        const int64_t rows = left / length, channel = channels - row % channels;
        const bool whole = !begin && rows > 0;
        const int64_t many = !whole ? 1 : rows < channel ? rows : channel;
        const int64_t end = whole || left >= length ? length : left;
        run_beside(r, &none, &elements, row, row + many, begin, end);
        at = (row + many - 1) * length + end;
    }
    r->part = RP__INTERP_ALL;
    return true;
}

/* Does the program go by rows? */
static bool part_rows(run *r, parts *s, sum *of) {
    if (r->dims < 2 || r->extent[r->dims - 1] < COPY || !part(r, s, r->dims - 1)) return false;
    s->load = copy_of(r, s);
    s->sums = !s->load && r->extent[r->dims - 1] >= WEIGHED && sum_of(r, s, of);
    return s->load || s->sums || r->extent[r->dims - 1] >= SHORT;
}
bool rp__interp_by_rows(run *r, int64_t first, int64_t last, bool routines, char *scratch) {
    parts s;
    sum of;
    bool fits = part_rows(r, &s, &of);
    if (!routines && (!fits || (!s.load && !s.n_still))) { /* rows have little use, if any */
        if (by_channels(r, first, last, scratch)) return true;
        fits = fits && part_rows(r, &s, &of);
    }
    if (!fits) return false;
    const unsigned dims = r->dims;
    const int64_t length = r->extent[dims - 1], rows = (last + length - 1) / length;
    way elements, over;
    r->walk = RP__WALK_ALONG;
    r->n_outer = dims - 1;
    rp__interp_begin_walk(r);
    memcpy(elements.form, r->form, sizeof r->form);
    memcpy(elements.direct, r->direct, sizeof r->direct);
    r->d0 = 0;
    r->d1 = r->n_outer;
    rp__interp_forms(r);
    memcpy(over.form, r->form, sizeof r->form);
    memset(over.direct, 0, sizeof over.direct); /* nothing is stored */
    r->w = r->b = r->nq = 1;
    r->tile = rp__interp_tile_for(r->p, length > RP__INTERP_STILL_ROWS ? length : RP__INTERP_STILL_ROWS);
    rp__interp_lay_out(r, scratch);
    rp__interp_uniform(r);
    choice one = {0};
    const bool chooses = !s.load && !s.sums && choice_of(r, &s, &one);
    if (!chooses && (!s.computed || (routines && !s.sums))) {
        r->walk = RP__WALK_ELEMENTS;
        r->n_outer = dims;
        return false;
    }
    if (s.sums) memset(scratch + RP__INTERP_BYTES, 0, (size_t)length * 4);
    char *const blocks = r->kept + (size_t)RP__INTERP_STILL_VALUES * RP__INTERP_STILL_ROWS * 8;
    const int64_t at_once = r->tile < RP__INTERP_STILL_ROWS ? r->tile : RP__INTERP_STILL_ROWS;
    for (int64_t row = first / length; row < rows; row += at_once) {
        const int64_t n = rows - row < at_once ? rows - row : at_once;
        take_way(r, &over, true);
        for (unsigned a = 0; a < r->p->n_accesses; a++) r->base[a] = (char *)(uintptr_t)r->address[a];
        r->pos = row;
        r->apart = r->kept;
        rp__interp_element(r, 0, n);
        if (s.load) {
            copy_rows(r, s.load, row, row + n, first, last);
            continue;
        }
        if (s.sums) {
            weigh_rows(r, &of, scratch + RP__INTERP_BYTES, row, row + n, first, last);
            continue;
        }
        if (chooses) {
            choose_rows(r, &one, row, row + n, first, last);
            continue;
        }
        take_way(r, &elements, false);
        move_rows(r, &s, blocks, row, row + n, first, last);
    }
    r->part = RP__INTERP_ALL;
    return true;
}
