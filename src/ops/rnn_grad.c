/* Derivatives of a recurrent layer. Those of recur: the steps back by one kernel (recur_backward), then the weights' gradient as one product over
   all steps; where something else than the states has a gradient, which is when second derivatives are taken, the steps are written with ops. Those of
   recur_backward, which is linear in the gradients that it gets: the steps forward again, with ops. */
#include "kernel/library.h"
#include "ops/grad.h"

#include "core/alloc.h"
#include "ops/private.h"
#include "ops/rnn.h"

typedef struct layer {
    unsigned cell;
    bool reverse;
    rp_tensor *states, *cells, *kept, *w;                             /* as recur has them */
    rp_tensor *grad, *grad_last, *grad_cells, *grad_cell, *grad_kept; /* NULL: zero */
    rp_tensor *dx, *dy, *dh, *dc;
} layer;

static rp_tensor *plus(rp_tensor *a, rp_tensor *b) { return a && b ? rp_add(a, b) : a ? a : b; }
static rp_tensor *at(rp_tensor *t, int64_t i) { return t ? rp_select(t, 0, i) : NULL; }
static rp_tensor *less_square(rp_tensor *x) { return rp_add_scalar(rp_neg(rp_mul(x, x)), rp_i64(1)); } /* 1 - x x */
static rp_tensor *twice_less(rp_tensor *x) {
    return rp_add_scalar(rp_mul_scalar(x, rp_i64(-2)), rp_i64(1));
} /* 1 - 2 x */
static rp_tensor *bell(rp_tensor *x) { return rp_sub(x, rp_mul(x, x)); } /* x (1 - x) */

/* Part k of four, of what a step kept or of its gradient. */
static rp_tensor *part(rp_tensor *kept, int64_t k, rp_dim units) {
    return kept ? rp_narrow(kept, -1, rp__dim_apply(RP__DIM_MUL, units, k), units) : NULL;
}

/* Of one step: the gradients of its sums, from dh and dc of the state and cell after it, which become those before it but for the product. */
static void step_back(const layer *l, int64_t t, rp_tensor **dh, rp_tensor **dc, rp_tensor **dx, rp_tensor **dy) {
    const int64_t after = l->reverse ? t : t + 1, before = l->reverse ? t + 1 : t;
    const rp_dim units = l->states->size[2];
    rp_tensor *h = at(l->states, after), *kept = at(l->kept, t), *more = at(l->grad_kept, t), *d = *dh;
    rp_tensor *one[4], *of[4];
    if (l->cell == RP__CELL_TANH || l->cell == RP__CELL_RELU) {
        *dx = *dy = l->cell == RP__CELL_TANH ? rp_mul(d, less_square(h))
                                             : rp_where(rp_le_scalar(h, rp_i64(0)), rp__zero_like(d), d);
        *dh = NULL;
        return;
    }
    for (int64_t k = 0; k < 4; k++) one[k] = part(kept, k, units), of[k] = part(more, k, units);
    if (l->cell == RP__CELL_GRU) {
        rp_tensor *r = one[0], *z = one[1], *n = one[2];
        of[2] = rp_mul(plus(rp_sub(d, rp_mul(d, z)), of[2]), less_square(n));
        of[1] = rp_mul(plus(rp_mul(d, rp_sub(at(l->states, before), n)), of[1]), bell(z));
        of[0] = rp_mul(plus(rp_mul(of[2], one[3]), of[0]), bell(r));
        of[3] = plus(rp_mul(of[2], r), of[3]);
        *dx = rp_cat(of, 3, -1);
        of[2] = of[3];
        *dy = rp_cat(of, 3, -1);
        *dh = rp_mul(d, z);
        return;
    }
    rp_tensor *i = one[0], *f = one[1], *g = one[2], *o = one[3], *c = rp_tanh(at(l->cells, after));
    rp_tensor *e = plus(plus(*dc, at(l->grad_cells, after)), rp_mul(rp_mul(d, o), less_square(c)));
    of[0] = rp_mul(plus(rp_mul(e, g), of[0]), bell(i));
    of[1] = rp_mul(plus(rp_mul(e, at(l->cells, before)), of[1]), bell(f));
    of[2] = rp_mul(plus(rp_mul(e, i), of[2]), less_square(g));
    of[3] = rp_mul(plus(rp_mul(d, c), of[3]), bell(o));
    *dx = *dy = rp_cat(of, 4, -1);
    *dc = rp_mul(e, f);
    *dh = NULL;
}

static rp_status composed(layer *l) {
    const uint64_t failures = rp__error_count();
    const int64_t steps = rp__dim_value(l->states->size[0]) - 1, first = l->reverse ? steps : 0;
    rp_tensor **dx = rp__calloc((size_t)steps * 2, sizeof(rp_tensor *)), **dy = dx + steps;
    if (!dx) return RP__OOM("the steps of a sequence");
    rp_tensor *dh = l->grad_last ? l->grad_last : rp_zeros_like(at(l->states, 0)), *dc = l->grad_cell;
    for (int64_t step = 0; step < steps; step++) {
        const int64_t t = l->reverse ? step : steps - 1 - step;
        rp_tensor *x = NULL, *y = NULL;
        dh = plus(dh, at(l->grad, l->reverse ? t : t + 1));
        step_back(l, t, &dh, &dc, &x, &y);
        dh = plus(dh, rp_matmul(y, l->w));
        dx[t] = rp_unsqueeze(x, 0);
        dy[t] = rp_unsqueeze(y, 0);
    }
    l->dh = plus(dh, at(l->grad, first));
    l->dc = plus(dc, at(l->grad_cells, first));
    l->dx = rp__joined(dx, steps, 0);
    l->dy = l->cell == RP__CELL_GRU ? rp__joined(dy, steps, 0) : l->dx;
    rp__free(dx);
    return rp__status_since(failures);
}

/* (T, N, C) as (T N, C) */
static rp_tensor *rows_of(rp_tensor *t) {
    if (rp__tensor_is_error(t)) return t;
    const rp_dim size[2] = {rp__dim_apply(RP__DIM_MUL, t->size[0], t->size[1]), t->size[2]};
    return rp_reshape(t, size, 2);
}

rp_status rp__vjp_recur(const rp__vjp *g) {
    const uint64_t failures = rp__error_count();
    const rp__call *call = g->call;
    layer l = {.cell = (unsigned)rp__attr_int(call, 0), .reverse = rp__attr_bool(call, 1), .states = call->out[0]};
    l.w = call->in[1], l.cells = call->out[2], l.kept = call->out[4];
    l.grad = g->grad_out[0], l.grad_last = g->grad_out[1];
    if (l.cell == RP__CELL_LSTM) l.grad_cells = g->grad_out[2], l.grad_cell = g->grad_out[3];
    if (l.cell >= RP__CELL_GRU) l.grad_kept = g->grad_out[4];
    if (l.grad_cells || l.grad_kept) {
        RP_TRY(composed(&l));
    } else {
        rp_tensor *y = NULL;
        l.dx = rp_recur_backward(l.grad, l.grad_last, l.grad_cell, l.states, l.cells, l.kept, l.w, (int64_t)l.cell,
                                 l.reverse, &y, &l.dh, &l.dc);
        l.dy = l.cell == RP__CELL_GRU ? y : l.dx;
        if (rp__tensor_is_error(l.dx)) return rp_error_status();
    }
    g->grad_in[0] = l.dx;
    if (g->needed[1]) {
        const rp_dim steps = rp__dim_apply(RP__DIM_SUB, l.states->size[0], 1);
        rp_tensor *before = rp_narrow(l.states, 0, l.reverse ? 1 : 0, steps);
        g->grad_in[1] = rp_bmm(rp_transpose(rows_of(l.dy), 0, 1), rows_of(before));
    }
    if (g->needed[2]) g->grad_in[2] = l.dy; /* summed by rp__grad_run */
    if (g->needed[3]) g->grad_in[3] = l.dh;
    if (g->needed[4] && l.cell == RP__CELL_LSTM) g->grad_in[4] = l.dc;
    return rp__status_since(failures);
}

/* ---- of recur_backward */

/* What is added up for one place. */
static void add_to(rp_tensor **sum, rp_tensor *x) { *sum = plus(*sum, x); }
static rp_tensor *times(rp_tensor *a, rp_tensor *b) { return a && b ? rp_mul(a, b) : NULL; }

/* One step of the derivative. It finds the gradients of what a step of recur_backward made, of dx, of dy, and of the dh and dc that it handed on, and d and e, dh
   and dc in its midst (step_back); it leaves, as dh and dc, those of what the step was handed, that of what was kept, and adds those of states and cells
   beside it. */
typedef struct turn {
    rp_tensor *of_x, *of_y, *dh, *dc, *d, *e;
    rp_tensor **state_after, **state_before, **cell_after, **cell_before, *kept;
} turn;

static void turn_gru(const layer *l, int64_t t, rp_dim units, turn *s) {
    rp_tensor *r = part(at(l->kept, t), 0, units), *z = part(at(l->kept, t), 1, units),
              *n = part(at(l->kept, t), 2, units), *yn = part(at(l->kept, t), 3, units),
              *less_z = rp_add_scalar(rp_neg(z), rp_i64(1)), *rise = less_square(n);
    rp_tensor *gap = rp_sub(at(l->states, l->reverse ? t + 1 : t), n), *both = plus(s->of_x, s->of_y);
    rp_tensor *of_r = part(both, 0, units), *of_z = part(both, 1, units), *of_n = part(s->of_x, 2, units),
              *of_yn = part(s->of_y, 2, units);
    rp_tensor *dn = rp_mul(rp_mul(s->d, less_z), rise);
    rp_tensor *b = plus(plus(of_n, rp_mul(rp_mul(of_r, yn), bell(r))), times(of_yn, r)), *db = rp_mul(b, s->d),
              *dz = rp_mul(of_z, s->d);
    rp_tensor *of[4];
    of[0] = plus(rp_mul(rp_mul(of_r, dn), rp_mul(yn, twice_less(r))), times(of_yn, dn));
    of[1] = rp_sub(rp_add(rp_mul(dz, rp_mul(gap, twice_less(z))), rp_mul(s->dh, s->d)), rp_mul(db, rise));
    of[2] = rp_neg(rp_add(rp_mul(rp_mul(db, less_z), rp_mul_scalar(n, rp_i64(2))), rp_mul(dz, bell(z))));
    of[3] = rp_mul(rp_mul(of_r, dn), bell(r));
    s->kept = rp_cat(of, 4, -1);
    add_to(s->state_before, rp_mul(dz, bell(z)));
    s->dh = rp_add(rp_add(rp_mul(rp_mul(b, less_z), rise), rp_mul(rp_mul(of_z, gap), bell(z))), rp_mul(s->dh, z));
}

static void turn_lstm(const layer *l, int64_t t, rp_dim units, turn *s) {
    const int64_t after = l->reverse ? t : t + 1, before = l->reverse ? t + 1 : t;
    rp_tensor *i = part(at(l->kept, t), 0, units), *f = part(at(l->kept, t), 1, units),
              *g = part(at(l->kept, t), 2, units), *o = part(at(l->kept, t), 3, units), *had = at(l->cells, before),
              *c = rp_tanh(at(l->cells, after));
    rp_tensor *of_i = part(s->of_x, 0, units), *of_f = part(s->of_x, 1, units), *of_g = part(s->of_x, 2, units),
              *of_o = part(s->of_x, 3, units), *rise = less_square(c);
    rp_tensor *e = plus(rp_add(rp_add(rp_mul(of_i, rp_mul(g, bell(i))), rp_mul(of_f, rp_mul(had, bell(f)))),
                               rp_mul(of_g, rp_mul(i, less_square(g)))),
                        times(s->dc, f));
    rp_tensor *ei = rp_mul(of_i, s->e), *ef = rp_mul(of_f, s->e), *eg = rp_mul(of_g, s->e), *od = rp_mul(of_o, s->d),
              *de = rp_mul(e, s->d), *of[4];
    of[0] = rp_add(rp_mul(ei, rp_mul(g, twice_less(i))), rp_mul(eg, less_square(g)));
    of[1] = plus(rp_mul(ef, rp_mul(had, twice_less(f))), times(s->dc, s->e));
    of[2] = rp_sub(rp_mul(ei, bell(i)), rp_mul(rp_mul(eg, i), rp_mul_scalar(g, rp_i64(2))));
    of[3] = rp_add(rp_mul(de, rise), rp_mul(od, rp_mul(c, twice_less(o))));
    s->kept = rp_cat(of, 4, -1);
    add_to(s->cell_before, rp_mul(ef, bell(f)));
    add_to(s->cell_after,
           rp_mul(rp_sub(rp_mul(od, bell(o)), rp_mul(rp_mul(de, o), rp_mul_scalar(c, rp_i64(2)))), rise));
    s->dh = rp_add(rp_mul(e, rp_mul(o, rise)), rp_mul(of_o, rp_mul(c, bell(o))));
    s->dc = e;
}

static void turn_step(const layer *l, int64_t t, turn *s) {
    const rp_dim units = l->states->size[2];
    rp_tensor *h = at(l->states, l->reverse ? t : t + 1);
    if (l->cell == RP__CELL_GRU) {
        turn_gru(l, t, units, s);
    } else if (l->cell == RP__CELL_LSTM) {
        turn_lstm(l, t, units, s);
    } else if (l->cell == RP__CELL_TANH) {
        add_to(s->state_after, rp_mul(rp_mul_scalar(h, rp_i64(-2)), rp_mul(s->d, s->of_x)));
        s->dh = rp_mul(s->of_x, less_square(h));
    } else {
        s->dh = rp_where(rp_le_scalar(h, rp_i64(0)), rp__zero_like(s->of_x), s->of_x);
    }
}

/* Of n places that each have a tensor like `like` or none. */
static rp_tensor *placed(rp_tensor **list, int64_t n, rp_tensor *like) {
    for (int64_t i = 0; i < n; i++) list[i] = rp_unsqueeze(list[i] ? list[i] : rp_zeros_like(like), 0);
    return rp__joined(list, n, 0);
}

/* dh and dc in the midst of each step of recur_backward, from what it found. */
static void midst(const layer *l, int64_t steps, rp_tensor **d, rp_tensor **e) {
    rp_tensor *sums = rp_matmul(l->dy, l->w), *dh = l->grad_last, *dc = l->grad_cell; /* (T, N, H) */
    for (int64_t step = 0; step < steps; step++) {
        const int64_t t = l->reverse ? step : steps - 1 - step, after = l->reverse ? t : t + 1;
        const rp_dim units = l->states->size[2];
        dh = plus(dh, at(l->grad, after));
        if (!dh) dh = rp_zeros_like(at(l->states, 0));
        d[t] = dh;
        if (l->cell == RP__CELL_LSTM) {
            e[t] =
                plus(dc, rp_mul(rp_mul(dh, part(at(l->kept, t), 3, units)), less_square(rp_tanh(at(l->cells, after)))));
            dc = rp_mul(e[t], part(at(l->kept, t), 1, units));
        }
        dh = plus(at(sums, t), l->cell == RP__CELL_GRU ? rp_mul(dh, part(at(l->kept, t), 1, units)) : NULL);
    }
}

rp_status rp__vjp_recur_backward(const rp__vjp *g) {
    const uint64_t failures = rp__error_count();
    const rp__call *call = g->call;
    rp_tensor *const *in = call->in;
    layer l = {
        .cell = (unsigned)rp__attr_int(call, 0), .reverse = rp__attr_bool(call, 1), .grad = in[0], .grad_last = in[1]};
    const bool gru = l.cell == RP__CELL_GRU, lstm = l.cell == RP__CELL_LSTM;
    if (lstm) l.grad_cell = in[2];
    l.states = in[3], l.cells = in[4], l.kept = in[5], l.w = in[6];
    l.dy = call->out[gru ? 1 : 0];
    const int64_t steps = rp__dim_value(l.states->size[0]) - 1, first = l.reverse ? steps : 0, places = steps + 1;
    rp_tensor **list = rp__calloc((size_t)places * 7, sizeof(rp_tensor *)), **d = list, **e = list + places,
              **handed = list + 2 * places, **grads = list + 3 * places, **states = list + 4 * places,
              **cells = list + 5 * places, **kept = list + 6 * places;
    if (!list) return RP__OOM("the steps of a sequence");
    midst(&l, steps, d, e);
    rp_tensor *none = rp_zeros_like(d[0]), *turned = rp_transpose(l.w, 0, 1);
    turn s = {.dh = g->grad_out[2] ? g->grad_out[2] : none, .dc = lstm ? g->grad_out[3] : NULL};
    grads[first] = s.dh;
    for (int64_t step = 0; step < steps; step++) {
        const int64_t t = l.reverse ? steps - 1 - step : step, after = l.reverse ? t : t + 1,
                      before = l.reverse ? t + 1 : t;
        rp_tensor *of_sums = rp_matmul(s.dh, turned);
        handed[t] = rp_unsqueeze(s.dh, 0);
        s.of_x = at(g->grad_out[0], t);
        s.of_y = gru ? plus(at(g->grad_out[1], t), of_sums) : NULL;
        if (!gru) s.of_x = plus(s.of_x, of_sums);
        s.d = d[t], s.e = e[t];
        s.state_after = &states[after], s.state_before = &states[before];
        s.cell_after = &cells[after], s.cell_before = &cells[before];
        turn_step(&l, t, &s);
        grads[after] = s.dh;
        kept[t] = s.kept;
    }
    if (g->needed[0]) g->grad_in[0] = placed(grads, places, none);
    if (g->needed[1]) g->grad_in[1] = s.dh;
    if (g->needed[2] && lstm) g->grad_in[2] = s.dc;
    if (g->needed[3]) g->grad_in[3] = placed(states, places, none);
    if (g->needed[4] && lstm) g->grad_in[4] = placed(cells, places, none);
    if (g->needed[5] && (gru || lstm)) g->grad_in[5] = placed(kept, steps, none);
    if (g->needed[6]) g->grad_in[6] = rp_bmm(rp_transpose(rows_of(l.dy), 0, 1), rows_of(rp__joined(handed, steps, 0)));
    rp__free(list);
    return rp__status_since(failures);
}
