/* The interpreter's instructions (interp_parts.h): runs the bytecode of one phase over one tile, values of rows and of the
   whole slice. What lies in memory one element behind the other is used or copied in place; the rest is interp_memory.c's. */
#include "kernel/cpu/interp_parts.h"

typedef rp__interp run;
typedef rp__interp_reg reg;

/* ---- loads and stores of tiles */

/* Where the one value of an access that stands still along the tile lies. */
static const char *still_at(const run *r, unsigned a) {
    int64_t at = 0;
    if (r->walk == RP__WALK_ACROSS) {
        at = rp__interp_offset(r, a, r->n_outer, r->dims, r->pos);
        if (r->d0) at += rp__interp_offset(r, a, 0, r->n_outer, r->w0);
    }
    return r->base[a] + at * (int64_t)r->p->access_size[a];
}
/* What stands still along the positions, for all that a tile has; rows may be of a stretch. */
static char *repeated_tile(run *r, const rp__insn *i) {
    const unsigned a = i->access, convert = r->p->access_load[a];
    char *const d = r->repeats_at + 8 * r->tile * __builtin_popcountll(r->repeats & ((UINT64_C(1) << a) - 1));
    if (r->repeated_yet >> a & 1) return d;
    r->repeated_yet |= UINT64_C(1) << a;
    const char *row = r->base[a] + rp__interp_across_at(r, a, 0) * (int64_t)r->p->access_size[a];
    if (convert) {
        rp__tile_call t = {.d = d, .a = row, .n = r->w};
        r->p->tiles->load[convert - 1](&t);
    } else {
        memcpy(d, row, (size_t)r->w * i->size);
    }
    rp__interp_replicate(r, d, i->size);
    return d;
}
static void load_tile(run *r, const rp__insn *i, char *buffer, int64_t n) {
    const unsigned a = i->access, size = r->p->access_size[a], convert = r->p->access_load[a];
    reg *d = &r->regs[i->d];
    const bool plain = i->a == RP__NO_VAL && i->b == RP__NO_VAL;
    if (plain && r->form[a] == RP__INTERP_UNIFORM && i->home != RP__HOME_KEPT &&
        (r->walk != RP__WALK_ACROSS || r->nq == 1)) {
        uint64_t bits = rp__interp_peek(still_at(r, a), size);
        if (convert == RP__LOAD_BOOL) {
            bits = bits != 0;
        } else if (convert) {
            uint32_t wide[16 * 4]; /* room for a vector */
            rp__tile_call t = {.d = wide, .a = &bits, .n = 1};
            r->p->tiles->load[convert - 1](&t);
            bits = wide[0];
        }
        rp__interp_splat(r->repeated[a], bits, i->size);
        *d = (reg){r->repeated[a], 0};
        return;
    }
    if (plain && r->walk == RP__WALK_ACROSS && r->repeats >> a & 1 && i->home != RP__HOME_KEPT) {
        *d = (reg){repeated_tile(r, i), 1};
        return;
    }
    const char *linear = NULL;
    if (plain && r->form[a] == RP__INTERP_LINEAR) {
        if (r->walk != RP__WALK_ACROSS) {
            linear = r->base[a] + r->pos * (int64_t)size;
        } else if (r->nq == 1 || r->flat[a]) {
            linear = r->base[a] + rp__interp_across_at(r, a, r->pos) * (int64_t)size;
        }
    }
    if (r->part == RP__INTERP_MOVING && i->a != RP__NO_VAL && i->b == RP__NO_VAL && !r->regs[i->a].step &&
        r->form[a] == RP__INTERP_LINEAR) { /* a row at a computed place */
        linear = r->base[a] + (r->pos + *(const int64_t *)(const void *)r->regs[i->a].p) * (int64_t)size;
    }
    d->step = 1;
    if (linear && !convert && r->whole && !(r->copied >> a & 1)) {
        union {
            const char *c;
            char *m;
        } memory = {.c = linear}; /* registers that were loaded are never written */
        d->p = memory.m;
        return;
    }
    d->p = buffer;
    if (convert) {
        if (!linear) {
            rp__interp_load_raw(r, i, r->raw, n);
            linear = r->raw;
        }
        rp__tile_call t = {.d = buffer, .a = linear, .n = n};
        r->p->tiles->load[convert - 1](&t);
    } else if (linear) {
        memcpy(buffer, linear, (size_t)n * size);
    } else {
        rp__interp_load_raw(r, i, buffer, n);
    }
}
static void iota_tile(run *r, const rp__insn *i, int64_t *d, int64_t n) {
    const unsigned a = i->access;
    const int64_t base = (int64_t)(intptr_t)r->base[a];
    if (r->p->access_windows[a]) {
        rp__interp_windows(r, i, (char *)d, n);
        return;
    }
    if (r->walk != RP__WALK_ACROSS) {
        rp__interp_iota_part(r, a, d, r->d0, r->d1, r->pos, n, base);
        return;
    }
    for (int64_t q = 0; q < r->nq; q++) {
        rp__interp_iota_part(r, a, d + q * r->w, 0, r->n_outer, r->w0, r->w,
                             base + rp__interp_offset(r, a, r->n_outer, r->dims, r->pos + q));
    }
}

static void store_tile(run *r, unsigned number, int64_t n) {
    const rp__program_store *st = &r->p->stores[number];
    const reg *v = &r->regs[st->value];
    const unsigned a = st->access, narrow = r->p->access_narrow[a];
    const bool plain = st->offset == RP__NO_VAL && st->predicate == RP__NO_VAL && st->mode == RP__STORE_SET;
    char *linear = NULL;
    if (plain && r->form[a] == RP__INTERP_LINEAR) {
        if (r->walk != RP__WALK_ACROSS) {
            linear = r->base[a] + r->pos * (int64_t)st->size;
        } else if (r->nq == 1 || r->flat[a]) {
            linear = r->base[a] + rp__interp_across_at(r, a, r->pos) * (int64_t)st->size;
        }
    }
    const char *value = v->p;
    int64_t step = v->step;
    unsigned from = narrow ? 4 : st->size;
    if (narrow && st->mode == RP__STORE_SET) {
        rp__tile_call t = {.d = linear ? linear : r->raw, .a = value, .as = step, .n = n};
        r->p->tiles->store_narrow[narrow - 1](&t);
        if (linear) return;
        value = r->raw;
        step = 1;
        from = st->size;
    }
    if (linear) {
        if (value != linear) rp__interp_copy_out(r, linear, value, step, st->size, 1, n);
    } else if (r->walk != RP__WALK_ACROSS) {
        rp__interp_store_part(r, st, value, step, from, r->d0, r->d1, r->pos, n, 0, 0);
    } else if (plain && step && rp__interp_turns(r, a)) {
        rp__interp_store_turned(r, st, value);
    } else {
        for (int64_t q = 0; q < r->nq; q++) {
            int64_t extra = rp__interp_offset(r, a, r->n_outer, r->dims, r->pos + q);
            rp__interp_store_part(r, st, value, step, from, 0, r->n_outer, r->w0, r->w, extra, q * r->w);
        }
    }
}

/* ---- segments of instructions --------------------------------------------------------------------------------------- */

/* A routine may write over an operand's tile, but not over a value of step 0 there, which it reads again for every vector:
   that one moves aside. */
static inline const char *beside(const reg *v, const char *d, char aside[64]) {
    if (v->step || v->p != d) return v->p;
    memcpy(aside, v->p, 64);
    return aside;
}

static inline void call_fn(const run *r, const rp__insn *i, char *d, int64_t n) {
    rp__tile_call t;
    _Alignas(64) char aside[3][64];
    t.d = d;
    t.a = beside(&r->regs[i->a], d, aside[0]);
    t.as = r->regs[i->a].step;
    if (i->b != RP__NO_VAL) {
        t.b = beside(&r->regs[i->b], d, aside[1]);
        t.bs = r->regs[i->b].step;
    }
    if (i->c != RP__NO_VAL) {
        t.c = beside(&r->regs[i->c], d, aside[2]);
        t.cs = r->regs[i->c].step;
    }
    t.n = n;
    t.imm = i->imm;
    t.env = &r->env;
    i->fn(&t);
}
void rp__interp_call(const run *r, const rp__insn *i, char *d, int64_t n) { call_fn(r, i, d, n); }
static char *direct_memory(const run *r, unsigned store) {
    const rp__program_store *st = &r->p->stores[store];
    int64_t at = r->pos;
    if (r->walk == RP__WALK_ACROSS) {
        if (r->nq != 1 && !r->flat[st->access]) return NULL;
        at = rp__interp_across_at(r, st->access, r->pos);
    }
    return r->base[st->access] + at * (int64_t)st->size;
}

/* A tile apart for the next still value of the rows under way. */
static char *still_tile(run *r) {
    char *d = r->apart;
    r->apart += RP__INTERP_STILL_ROWS * 8;
    return d;
}

/* One emitted function: pointers of inputs, outputs and accumulators, and the steps of the inputs. */
static void run_group(run *r, const rp__group *g, int64_t n) {
    const rp__program *p = r->p;
    char *pointers[RP__GROUP_POINTERS];
    int64_t steps[RP__GROUP_POINTERS];
    unsigned k = 0;
    for (unsigned i = 0; i < g->n_inputs; i++, k++) {
        pointers[k] = r->regs[g->inputs[i]].p;
        steps[k] = r->regs[g->inputs[i]].step;
    }
    const bool across = r->walk == RP__WALK_ACROSS;
    for (unsigned i = 0; i < g->n_outputs; i++, k++) {
        const rp__group_output *o = &g->outputs[i];
        char *d = o->home == RP__HOME_KEPT ? r->kept + r->kept_cap * o->at + (across ? r->pos * r->w : r->pos) * o->size
                  : r->part & RP__INTERP_APART ? still_tile(r)
                                               : r->tiles + r->tile * o->at;
        if (o->direct && r->whole && r->direct[o->direct - 1]) {
            char *memory = direct_memory(r, o->direct - 1u);
            if (memory) d = memory;
        }
        r->regs[o->d] = (reg){d, 1};
        pointers[k] = d;
    }
    for (unsigned i = 0; i < g->n_reductions; i++, k++) {
        const rp__reduction *red = &p->reductions[g->reductions[i]];
        pointers[k] = across ? r->acc + (red->at * r->lanes + r->pos % RP__LANES * red->size) * r->w
                             : r->acc + red->at * RP__LANES;
    }
    (across ? g->across : g->along)(pointers, steps, n);
}

/* A scan goes through the positions of its row, or rows, in order: a phase starts at the first, tiles follow each other. */
static void scan_tile(run *r, const rp__insn *i, char *d, int64_t n) {
    const rp__program_scan *s = &r->p->scans[i->access];
    const reg *a = &r->regs[i->a];
    char *state = r->scan + (int64_t)s->at * r->w;
    if (r->walk != RP__WALK_ACROSS) {
        const rp__scan_call c = {.d = d, .state = state, .a = a->p, .as = a->step, .n = n, .pos = r->pos};
        r->p->tiles->scan[s->kind][s->type](&c);
        return;
    }
    const int64_t bytes = r->w * s->size;
    rp__tile_fn *combine = r->p->tiles->scan_block[s->kind][s->type];
    char *block = state + bytes, *chunk = block + bytes, *before = chunk + bytes;
#define COMBINE(to, from, by) combine(&(rp__tile_call){.d = to, .a = from, .as = by, .n = r->w})
    for (int64_t q = 0; q < r->nq; q++, d += bytes) {
        const int64_t pos = r->pos + q, first = pos % RP__SCAN_BLOCK == 0;
        const char *v = a->p + (a->step ? q * bytes : 0);
        if (first && pos) {
            if (pos % RP__CHUNK == RP__SCAN_BLOCK)
                memcpy(block, state, (size_t)bytes);
            else
                COMBINE(block, state, 1);
            if (pos == RP__CHUNK)
                memcpy(chunk, block, (size_t)bytes);
            else if (pos % RP__CHUNK == 0)
                COMBINE(chunk, block, 1);
            memcpy(before, pos < RP__CHUNK ? block : chunk, (size_t)bytes);
            if (pos > RP__CHUNK && pos % RP__CHUNK) COMBINE(before, block, 1);
        }
        if (!first)
            COMBINE(state, v, a->step);
        else if (a->step)
            memcpy(state, v, (size_t)bytes);
        else
            for (int64_t j = 0; j < bytes; j += 64) memcpy(state + j, v, (size_t)(bytes - j < 64 ? bytes - j : 64));
        memcpy(d, pos < RP__SCAN_BLOCK ? state : before, (size_t)bytes);
        if (pos >= RP__SCAN_BLOCK) COMBINE(d, state, 1);
    }
#undef COMBINE
}

static inline void run_insn(run *r, const rp__insn *i, char *d, int64_t n) {
    const rp__program *p = r->p;
    switch (i->kind) {
    case RP__INSN_OP: {
        if (i->direct && r->whole && r->direct[i->direct - 1]) {
            char *memory = direct_memory(r, i->direct - 1u);
            if (memory) d = memory;
        }
        r->regs[i->d] = (reg){d, 1};
        call_fn(r, i, d, n);
        break;
    }
    case RP__INSN_LOAD: load_tile(r, i, d, n); break;
    case RP__INSN_IOTA:
        r->regs[i->d] = (reg){d, 1};
        iota_tile(r, i, (int64_t *)(void *)d, n);
        break;
    case RP__INSN_SCAN:
        r->regs[i->d] = (reg){d, 1};
        scan_tile(r, i, d, n);
        break;
    case RP__INSN_INSIDE:
        r->regs[i->d] = (reg){d, 1};
        rp__interp_windows(r, i, d, n);
        break;
    case RP__INSN_KEPT: r->regs[i->d] = (reg){d, 1}; break;
    case RP__INSN_GROUP: run_group(r, &p->groups[i->access], n); break;
    case RP__INSN_REDUCE: {
        const rp__reduction *red = &p->reductions[i->access];
        const reg *a = &r->regs[i->a];
        rp__tile_call t = {.a = a->p, .as = a->step, .n = n};
        if (r->walk == RP__WALK_ACROSS) {
            t.d = r->acc + (red->at * r->lanes + r->pos % RP__LANES * red->size) * r->w;
            p->tiles->reduce_block[red->kind][red->type](&t);
        } else {
            t.d = r->acc + red->at * RP__LANES;
            p->tiles->reduce_row[red->kind][red->type](&t);
        }
        break;
    }
    default: store_tile(r, i->access, n);
    }
}
void rp__interp_insn(run *r, const rp__insn *i, char *d, int64_t n) { run_insn(r, i, d, n); }

void rp__interp_element(run *r, unsigned phase, int64_t n) {
    const rp__program *p = r->p;
    const rp__insn *i = p->insns + p->element[phase].begin, *end = p->insns + p->element[phase].end;
    r->whole = (uint64_t)n * p->min_size % p->tiles->vec_bytes == 0;
    const uint8_t *moves = r->part ? r->moves : NULL;
    for (; i < end; i++) {
        if (RP__UNLIKELY(moves != NULL) && !(*moves++ & r->part)) continue;
        char *d = r->tiles + r->tile * i->at;
        if (RP__UNLIKELY(r->part & RP__INTERP_APART) && i->kind != RP__INSN_GROUP) d = still_tile(r);
        if (i->home == RP__HOME_KEPT) {
            d = r->kept + r->kept_cap * i->at + (r->walk == RP__WALK_ACROSS ? r->pos * r->w : r->pos) * i->size;
        }
        run_insn(r, i, d, n);
    }
}

void rp__interp_listed(run *r, const uint16_t *list, unsigned count, int64_t n) {
    const rp__insn *const insns = r->p->insns + r->p->element[0].begin;
    r->whole = (uint64_t)n * r->p->min_size % r->p->tiles->vec_bytes == 0;
    for (unsigned k = 0; k < count; k++) {
        const rp__insn *i = &insns[list[k]];
        run_insn(r, i, r->tiles + r->tile * i->at, n);
    }
}

void rp__interp_row(run *r, struct rp__segment s) {
    const rp__program *p = r->p;
    for (uint32_t k = s.begin; k < s.end; k++) {
        const rp__insn *i = &p->insns[k];
        reg *d = &r->regs[i->d];
        const unsigned a = i->access;
        if (r->walk != RP__WALK_ACROSS) {
            if (i->kind == RP__INSN_OP) {
                call_fn(r, i, d->p, 1);
            } else if (i->kind == RP__INSN_INSIDE || (i->kind == RP__INSN_IOTA && p->access_windows[a])) {
                rp__interp_windows_part(r, i, d->p, 0, 0, 0, 1, -1);
            } else if (i->kind == RP__INSN_IOTA) {
                int64_t v = (int64_t)(intptr_t)r->base[a];
                memcpy(d->p, &v, 8);
            } else {
                const unsigned size = p->access_size[a], convert = p->access_load[a];
                const reg *off = i->a == RP__NO_VAL ? NULL : &r->regs[i->a],
                          *pred = i->b == RP__NO_VAL ? NULL : &r->regs[i->b];
                char one[8];
                if (p->access_windows[a])
                    rp__interp_windows_part(r, i, one, 0, 0, 0, 1, -1);
                else
                    rp__interp_load_each(r, one, r->base[a], size, 0, 1, off, pred, 0);
                if (convert) {
                    rp__tile_call t = {.d = d->p, .a = one, .n = 1};
                    p->tiles->load[convert - 1](&t);
                } else {
                    memcpy(d->p, one, size);
                }
            }
            rp__interp_splat(d->p, rp__interp_peek(d->p, i->size), i->size);
            continue;
        }
        if (i->kind == RP__INSN_OP) {
            call_fn(r, i, d->p, r->w);
        } else if (i->kind == RP__INSN_INSIDE || (i->kind == RP__INSN_IOTA && p->access_windows[a])) {
            rp__interp_windows_part(r, i, d->p, 0, r->n_outer, r->w0, r->w, -1);
        } else if (i->kind == RP__INSN_IOTA) {
            rp__interp_iota_part(r, a, (int64_t *)(void *)d->p, 0, r->n_outer, r->w0, r->w,
                                 (int64_t)(intptr_t)r->base[a]);
        } else {
            const unsigned convert = p->access_load[a];
            rp__interp_load_part(r, i, convert ? r->raw : d->p, 0, r->n_outer, r->w0, r->w, 0, 0);
            if (convert) {
                rp__tile_call t = {.d = d->p, .a = r->raw, .n = r->w};
                p->tiles->load[convert - 1](&t);
            }
        }
        if (r->b > 1) rp__interp_replicate(r, d->p, i->size);
    }
}
void rp__interp_uniform(run *r) {
    const rp__program *p = r->p;
    for (uint32_t k = 0; k < p->uniform_end; k++) {
        const rp__insn *i = &p->insns[k];
        char *d = r->blocks + 64 * (size_t)i->at;
        r->regs[i->d] = (reg){d, 0};
        if (i->fn) {
            call_fn(r, i, d, 1);
            rp__interp_splat(d, rp__interp_peek(d, i->size), i->size);
        } else {
            rp__interp_splat(d, i->b == RP__NO_VAL ? (uint64_t)i->imm : r->scalars[i->b], i->size);
        }
    }
}
