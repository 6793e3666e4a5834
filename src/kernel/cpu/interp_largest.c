/* The phase of argmax and its like (program.h: rp__program_largest): of each row the least number of an element that is the row's largest
   value, or NaN. Instead of a choice and a minimum of 64-bit numbers an element, positions are compared and counted in integers as wide
   as the elements, of many rows side by side; along a row the search ends where it finds one. Called by interp_rows.c. */
#include "kernel/cpu/interp_parts.h"

typedef rp__interp run;
typedef rp__interp_reg reg;

enum {
    FEW = 32,    /* rows: positions of a tile stand side by side, too, so that vectors are full */
    AT_ONCE = 16 /* positions of a column that are read where they lie */
};

static int64_t best_of(const char *best, unsigned size, int64_t k) {
    int32_t narrow;
    int64_t wide;
    if (size == 8) {
        memcpy(&wide, best + 8 * k, 8);
        return wide;
    }
    memcpy(&narrow, best + 4 * k, 4);
    return narrow == INT32_MAX ? INT64_MAX : narrow;
}
/* A tile of m positions, from r->pos on, as the load gives it; `line` elements of it are read in whole vectors. */
static const char *load(run *r, const rp__insn *i, int64_t m, int64_t line) {
    const int64_t n = m * r->w;
    r->nq = m;
    r->whole = (uint64_t)line * r->p->min_size % r->p->tiles->vec_bytes == 0;
    rp__interp_insn(r, i, r->tiles + r->tile * i->at, n);
    return r->regs[i->d].p;
}
static void along(run *r, const rp__insn *i, const rp__reduction *red, int64_t base, int64_t step) {
    const rp__program_largest *x = &r->p->largest;
    int64_t at = -1, number = INT64_MAX;
    for (int64_t pos = 0; pos < r->row_len && at < 0; pos += r->b) {
        const int64_t m = r->row_len - pos < r->b ? r->row_len - pos : r->b;
        r->pos = pos;
        at = r->p->tiles->find[i->type](load(r, i, m, m), r->regs[x->largest].p, m);
        if (at >= 0) number = base + (pos + at) * step;
    }
    rp__interp_set_result(r, red, (const char *)&number);
}
static void across(run *r, const rp__insn *i, const rp__reduction *red, int64_t base, int64_t step) {
    const rp__program_largest *x = &r->p->largest;
    rp__first_fn *fn = r->p->tiles->first[i->type];
    const unsigned size = i->size;
    const int64_t w = r->w, few = w < FEW ? r->b : 1; /* positions side by side */
    char *best = r->acc + (int64_t)red->at * r->lanes * w;
    const int64_t line = few < r->row_len ? few * w : r->row_len * w;
    if (size == 8) {
        for (int64_t k = 0; k < line; k++) memcpy(best + 8 * k, &(int64_t){INT64_MAX}, 8);
    } else {
        for (int64_t k = 0; k < line; k++) memcpy(best + 4 * k, &(int32_t){INT32_MAX}, 4);
    }
    rp__first_call c = {.best = best, .largest = r->regs[x->largest].p, .n = w, .step = w};
    const int64_t apart = rp__interp_position_step(r, i->access);
    const bool in_place = r->b == 1 && few == 1 && apart > 0 && !r->p->access_load[i->access] &&
                          r->form[i->access] == RP__INTERP_LINEAR && (uint64_t)w * size % r->p->tiles->vec_bytes == 0;
    if (in_place) {
        c.step = apart;
        for (; c.number < r->row_len; c.number += AT_ONCE) {
            c.a = r->base[i->access] + rp__interp_across_at(r, i->access, c.number) * (int64_t)size;
            c.positions = r->row_len - c.number < AT_ONCE ? r->row_len - c.number : AT_ONCE;
            fn(&c);
        }
    }
    for (int64_t pos = 0; pos < r->row_len && !in_place; pos += r->b) {
        const int64_t m = r->row_len - pos < r->b ? r->row_len - pos : r->b;
        r->pos = pos;
        c.a = load(r, i, m, few > 1 ? m * w : w);
        c.number = few > 1 ? pos / few : pos;
        c.positions = few > 1 ? 1 : m;
        if (few > 1) c.n = m * w;
        fn(&c);
    }
    char *d = r->regs[red->d].p;
    if (few == 1 && size == 4) { /* for the compiler's vectors */
        const int32_t *from = (const int32_t *)(const void *)best;
        int64_t *to = (int64_t *)(void *)d;
        for (int64_t k = 0; k < w; k++) to[k] = from[k] == INT32_MAX ? INT64_MAX : base + from[k] * step;
        if (r->b > 1) rp__interp_replicate(r, d, 8);
        return;
    }
    for (int64_t k = 0; k < w; k++) {
        int64_t least = INT64_MAX;
        for (int64_t q = 0; q < few && q < r->row_len; q++) {
            const int64_t tile = best_of(best, size, q * w + k);
            if (tile != INT64_MAX && tile * few + q < least) least = tile * few + q;
        }
        if (least != INT64_MAX) least = base + least * step;
        memcpy(d + 8 * k, &least, 8);
    }
    if (r->b > 1) rp__interp_replicate(r, d, 8);
}

bool rp__interp_largest(run *r, unsigned phase) {
    const rp__program_largest *x = &r->p->largest;
    const rp__insn *i = &r->p->insns[x->load];
    const rp__reduction *red = &r->p->reductions[x->reduction];
    const int64_t *stride = r->stride + (size_t)x->iota * r->dims;
    const int64_t step = rp__interp_position_step(r, x->iota);
    const reg *largest = &r->regs[x->largest];
    assert(phase + 1u == x->phase);
    (void)phase;
    /* what stands still may lie in one vector, which is no tile */
    if (r->row_len < 1 || r->row_len > INT32_MAX || (step < 1 && r->row_len > 1) ||
        r->form[i->access] == RP__INTERP_UNIFORM)
        return false;
    for (unsigned d = 0; d < r->n_outer; d++) {
        if (stride[d] && r->extent[d] > 1) return false;
    }
    const int64_t base = (int64_t)(intptr_t)r->address[x->iota];
    if (r->walk == RP__WALK_ACROSS && largest->step == 1)
        across(r, i, red, base, step);
    else if (r->walk == RP__WALK_ALONG)
        along(r, i, red, base, step);
    else
        return false;
    return true;
}
