/* L-BFGS (torch.optim.LBFGS): steps of a quasi-Newton method, each of several evaluations of the loss, with or
   without a line search for the strong Wolfe conditions (Nocedal and Wright, Numerical Optimization, algorithms 3.5,
   3.6 and 7.4). Decisions are the host's: it is no part of a recorded step. Parameters and gradients are walked as
   one flat vector; vectors lie on the device, numbers here and, between steps, in a tensor, so that files keep all of
   it. */
#include "ops/private.h"
#include <reprise_nn.h>

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/handle.h"
#include "core/options.h"
#include "nn/lbfgs.h"
#include "tensor/tensor.h"

/* Sufficient decrease and curvature of the line search. */
#define C1 1e-4
#define C2 0.9

enum { N_ITER, FUNC_EVALS, LENGTH, H_DIAG, PREV_LOSS, STORED, FIRST, NUMBERS };

struct rp_lbfgs {
    rp__handle handle;
    rp_tensor **params;
    size_t n;
    int64_t numel, history, max_iter, max_eval;
    double lr, tolerance_grad, tolerance_change;
    bool strong_wolfe, maximize;
    rp_tensor *tensors[RP__LBFGS_TENSORS];
    double numbers[NUMBERS];
    double *ro; /* 1 / (y . s) of each pair that is stored, by row; worked out again after a load */
    double *al;
    rp_lbfgs_closure *closure; /* of the step that is going on */
    void *ctx;
    uint64_t failures; /* of the thread before that step */
};

static const char *const names[RP__LBFGS_TENSORS] = {"old_dirs", "old_stps", "d", "prev_flat_grad", "numbers"};
enum { DIRS, STEPS, D, PREV_GRAD, SAVED };

static rp_lbfgs failed_lbfgs; /* returned where one could not be made */

static rp_status lbfgs_check(const rp_lbfgs *l, const char *call) {
    if (l == &failed_lbfgs) return rp__fail(RP_ERROR_STATE, "%s: the optimizer could not be made", call);
    return rp__handle_check(l, RP__HANDLE_LBFGS, call);
}

/* ---------------------------------------------------------------- construction */

static void lbfgs_free(rp_lbfgs *l) {
    for (size_t i = 0; l->params && i < l->n; i++) rp_release(l->params[i]);
    for (int k = 0; k < RP__LBFGS_TENSORS; k++)
        if (l->tensors[k]) rp_release(l->tensors[k]);
    rp__free(l->params);
    rp__free(l->ro);
    rp__free(l->al);
    rp__handle_free(l);
}

static rp_status take_params(rp_lbfgs *l, rp_tensor *const *params, size_t n) {
    if (n == 0 || !params) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_lbfgs_new: the list of parameters is empty");
    l->params = rp__calloc(n, sizeof *l->params);
    if (!l->params) return RP__OOM("rp_lbfgs_new");
    for (size_t i = 0; i < n; i++) {
        RP_TRY(rp__tensor_check(params[i], "parameter"));
        if (!rp_is_leaf(params[i]) || !rp__dtype_is_float((rp_dtype)params[i]->dtype) ||
            params[i]->dtype != params[0]->dtype || !rp__device_equal(params[i]->device, params[0]->device))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "rp_lbfgs_new: parameters must be leaves of one floating type on one device");
        l->params[l->n++] = rp_retain(params[i]);
        l->numel += rp_numel(params[i]);
    }
    return RP_OK;
}

static rp_status make_state(rp_lbfgs *l) {
    const rp_dtype type = (rp_dtype)l->params[0]->dtype;
    rp_device device = rp_default_device();
    RP_TRY(rp_set_default_device(l->params[0]->device));
    const rp_zeros_options *of_type = RP_OPTIONS(rp_zeros_options, .dtype = type);
    rp_tensor *made[RP__LBFGS_TENSORS] = {rp_zeros(RP_DIMS(l->history, l->numel), of_type),
                                          rp_zeros(RP_DIMS(l->history, l->numel), of_type),
                                          rp_zeros(RP_DIMS(l->numel), of_type), rp_zeros(RP_DIMS(l->numel), of_type),
                                          rp_zeros(RP_DIMS(NUMBERS), RP_OPTIONS(rp_zeros_options, .dtype = RP_F64))};
    RP_TRY(rp_set_default_device(device));
    for (int k = 0; k < RP__LBFGS_TENSORS; k++) {
        if (rp__tensor_is_error(made[k])) return rp_error_status();
        l->tensors[k] = rp_retain(made[k]);
    }
    l->ro = rp__calloc((size_t)l->history + 1, sizeof *l->ro);
    l->al = rp__calloc((size_t)l->history + 1, sizeof *l->al);
    return l->ro && l->al ? RP_OK : RP__OOM("rp_lbfgs_new");
}

rp_lbfgs *rp_lbfgs_new_at(const char *site, rp_tensor *const *params, size_t n, double lr,
                          const rp_lbfgs_options *options) {
    RP__CALLED_FROM(site);
    rp_lbfgs_options o;
    if (rp__options_read("rp_lbfgs_new", options, sizeof o, &o) != RP_OK) return &failed_lbfgs;
    if (!(lr >= 0) || o.max_iter < 0 || o.max_eval < 0 || o.history_size < 0) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_lbfgs_new: learning rate and counts must not be negative");
        return &failed_lbfgs;
    }
    rp_lbfgs *l = rp__handle_new(RP__HANDLE_LBFGS, sizeof *l);
    if (!l) {
        (void)RP__OOM("rp_lbfgs_new");
        return &failed_lbfgs;
    }
    l->lr = lr;
    l->max_iter = o.max_iter ? o.max_iter : 20;
    l->max_eval = o.max_eval ? o.max_eval : l->max_iter * 5 / 4;
    l->history = o.history_size ? o.history_size : 100;
    l->tolerance_grad = rp__option_or(o.tolerance_grad, 1e-7);
    l->tolerance_change = rp__option_or(o.tolerance_change, 1e-9);
    l->strong_wolfe = o.strong_wolfe;
    l->maximize = o.maximize;
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? take_params(l, params, n) : rp_error_status();
    if (status == RP_OK) status = make_state(l);
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    if (status == RP_OK) return l;
    lbfgs_free(l);
    return &failed_lbfgs;
}

void rp_lbfgs_release(rp_lbfgs *l) {
    if (l && l != &failed_lbfgs && rp__handle_give_up(l, RP__HANDLE_LBFGS, "rp_lbfgs_release")) lbfgs_free(l);
}

/* ---------------------------------------------------------------- vectors and numbers */

static rp_status so_far(const rp_lbfgs *l) { return rp__status_since(l->failures); }

static double dot(rp_tensor *x, rp_tensor *y) { return rp_item_f64(rp_sum(rp_mul(x, y))); }
static double largest(rp_tensor *x) { return rp_item_f64(rp_amax(rp_abs(x))); }
static rp_tensor *row(rp_tensor *matrix, int64_t k) { return rp_select(matrix, 0, k); }
/* x += a y */
static void add(rp_tensor *x, rp_tensor *y, double a) {
    (void)rp_add_(x, y, RP_OPTIONS(rp_add_options, .alpha = rp_f64(a)));
}

/* The gradient of what is made smaller. */
static rp_tensor *flat_grad(const rp_lbfgs *l) {
    rp_tensor *flat = rp_zeros_like(l->tensors[D]);
    int64_t at = 0;
    for (size_t i = 0; i < l->n; i++) {
        const int64_t count = rp_numel(l->params[i]);
        rp_tensor *grad = rp_grad_of(l->params[i]);
        if (grad && count) (void)rp_copy_(rp_slice(flat, 0, at, at + count, 1), rp_reshape(grad, RP_DIMS(count)));
        at += count;
    }
    return l->maximize ? rp_neg(flat) : flat;
}

/* Parameters are at `from`, flat, plus t d. */
static void move(const rp_lbfgs *l, rp_tensor *from, double t) {
    rp_tensor *to = rp_clone(from);
    int64_t at = 0;
    add(to, l->tensors[D], t);
    for (size_t i = 0; i < l->n; i++) {
        const int64_t count = rp_numel(l->params[i]);
        rp_tensor *p = l->params[i];
        if (count) (void)rp_copy_(p, rp_reshape(rp_slice(to, 0, at, at + count, 1), p->size, p->ndim));
        at += count;
    }
}

static rp_tensor *flat_params(const rp_lbfgs *l) {
    rp_tensor *flat = rp_zeros_like(l->tensors[D]);
    int64_t at = 0;
    for (size_t i = 0; i < l->n; i++) {
        const int64_t count = rp_numel(l->params[i]);
        if (count) (void)rp_copy_(rp_slice(flat, 0, at, at + count, 1), rp_reshape(l->params[i], RP_DIMS(count)));
        at += count;
    }
    return flat;
}

/* The program's function, with gradients; what is made smaller. */
static double evaluate(const rp_lbfgs *l, rp_tensor **loss) {
    bool grad_mode = rp_set_grad_enabled(true);
    rp_scope scope = rp__scope_begin();
    rp_tensor *value = scope.id ? l->closure(l->ctx) : rp__tensor_error();
    (void)rp_set_grad_enabled(false);
    if (!value) (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_lbfgs_step: the function gave no loss");
    const bool good = value && rp__tensor_check(value, "the loss") == RP_OK;
    const double f = good ? rp_item_f64(value) : NAN;
    if (loss) *loss = good ? rp_clone(rp_detach(value)) : rp__tensor_error();
    rp__scope_end(scope, loss, loss != NULL);
    (void)rp_set_grad_enabled(grad_mode);
    return l->maximize ? -f : f;
}

/* ---------------------------------------------------------------- line search */

typedef struct point {
    double t, f, slope; /* along d */
    rp_tensor *grad;
} point;

static point probe(const rp_lbfgs *l, rp_tensor *from, double t) {
    point p = {.t = t};
    move(l, from, t);
    p.f = evaluate(l, NULL);
    p.grad = flat_grad(l);
    p.slope = dot(p.grad, l->tensors[D]);
    return p;
}

/* Where the cubic with these values and slopes is least, between low and high. */
static double least_of_cubic(point a, point b, double low, double high) {
    if (a.t > b.t) {
        const point kept = a;
        a = b;
        b = kept;
    }
    const double d1 = a.slope + b.slope - 3 * (a.f - b.f) / (a.t - b.t), square = d1 * d1 - a.slope * b.slope;
    if (!(square >= 0)) return (low + high) / 2;
    const double d2 = sqrt(square);
    return fmin(fmax(b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2)), low), high);
}

/* A trial that is too near an end of the bracket, again or beyond it, is a tenth of the bracket away from that end. */
static double kept_apart(double t, double low, double high, bool *near) {
    const double margin = 0.1 * (high - low);
    if (!(fmin(high - t, t - low) < margin)) {
        *near = false;
        return t;
    }
    if (!*near && t < high && t > low) {
        *near = true;
        return t;
    }
    *near = false;
    return fabs(t - high) < fabs(t - low) ? high - margin : low + margin;
}

/* From `start` (t = 0), first trial t: a point with the strong Wolfe conditions, or the best that so many evaluations
   find. */
static point search(const rp_lbfgs *l, rp_tensor *from, point start, double t, int64_t limit, int64_t *evaluations) {
    const double reach = largest(l->tensors[D]);
    point before = start, now = probe(l, from, t), end[2];
    int64_t tries = 0;
    bool done = false, bracketed = false, near = false;
    *evaluations = 1;
    end[0] = start;
    end[1] = now;
    for (; tries < limit && !done && !bracketed && so_far(l) == RP_OK;) {
        if (now.f > start.f + C1 * now.t * start.slope || (tries > 1 && now.f >= before.f) ||
            (fabs(now.slope) > -C2 * start.slope && now.slope >= 0)) {
            end[0] = before;
            end[1] = now;
            bracketed = true;
        } else if (fabs(now.slope) <= -C2 * start.slope) {
            end[0] = end[1] = now;
            done = true;
        } else {
            const double next = least_of_cubic(before, now, now.t + 0.01 * (now.t - before.t), now.t * 10);
            before = now;
            now = probe(l, from, next);
            ++*evaluations;
            tries++;
            end[0] = start;
            end[1] = now;
        }
    }
    int low = end[0].f <= end[1].f ? 0 : 1;
    while (!done && tries < limit && so_far(l) == RP_OK) {
        const double least = fmin(end[0].t, end[1].t), most = fmax(end[0].t, end[1].t);
        if ((most - least) * reach < l->tolerance_change) break;
        now = probe(l, from, kept_apart(least_of_cubic(end[0], end[1], least, most), least, most, &near));
        ++*evaluations;
        tries++;
        if (now.f > start.f + C1 * now.t * start.slope || now.f >= end[low].f) {
            end[1 - low] = now;
            low = end[0].f <= end[1].f ? 0 : 1;
            continue;
        }
        if (fabs(now.slope) <= -C2 * start.slope)
            done = true;
        else if (now.slope * (end[1 - low].t - end[low].t) >= 0)
            end[1 - low] = end[low];
        end[low] = now;
    }
    return end[low];
}

/* ---------------------------------------------------------------- the step */

/* Takes in what the last move showed: the pair y (of gradients), s (of places). */
static void remember(rp_lbfgs *l, rp_tensor *grad) {
    double *v = l->numbers;
    rp_tensor *y = rp_sub(grad, l->tensors[PREV_GRAD]), *s = rp_mul_scalar(l->tensors[D], rp_f64(v[LENGTH]));
    const double ys = dot(y, s);
    if (!(ys > 1e-10)) return;
    int64_t at;
    if ((int64_t)v[STORED] == l->history) {
        at = (int64_t)v[FIRST];
        v[FIRST] = (double)((at + 1) % l->history);
    } else {
        at = (int64_t)v[STORED];
        v[STORED] += 1;
    }
    (void)rp_copy_(row(l->tensors[DIRS], at), y);
    (void)rp_copy_(row(l->tensors[STEPS], at), s);
    l->ro[at] = 1 / ys;
    v[H_DIAG] = ys / dot(y, y);
}

/* d = -H grad, by the pairs that are stored, the newest first and then the oldest first. */
static void direction(rp_lbfgs *l, rp_tensor *grad) {
    const double *v = l->numbers;
    const int64_t n = (int64_t)v[STORED], first = (int64_t)v[FIRST];
    rp_tensor *q = rp_neg(grad);
    for (int64_t i = n; i-- > 0;) {
        const int64_t at = (first + i) % l->history;
        l->al[at] = dot(row(l->tensors[STEPS], at), q) * l->ro[at];
        add(q, row(l->tensors[DIRS], at), -l->al[at]);
    }
    q = rp_mul_scalar(q, rp_f64(v[H_DIAG]));
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (first + i) % l->history;
        add(q, row(l->tensors[STEPS], at), l->al[at] - dot(row(l->tensors[DIRS], at), q) * l->ro[at]);
    }
    (void)rp_copy_(l->tensors[D], q);
}

/* One iteration; false: it was the last. */
static bool iterate(rp_lbfgs *l, int64_t done, int64_t *evaluations, double *loss, rp_tensor **grad) {
    double *v = l->numbers;
    v[N_ITER] += 1;
    if (v[N_ITER] == 1) {
        v[H_DIAG] = 1;
        (void)rp_copy_(l->tensors[D], rp_neg(*grad));
    } else {
        remember(l, *grad);
        direction(l, *grad);
    }
    (void)rp_copy_(l->tensors[PREV_GRAD], *grad);
    v[PREV_LOSS] = *loss;
    v[LENGTH] = v[N_ITER] == 1 ? fmin(1, 1 / rp_item_f64(rp_sum(rp_abs(*grad)))) * l->lr : l->lr;
    const double slope = dot(*grad, l->tensors[D]);
    if (so_far(l) != RP_OK || slope > -l->tolerance_change) return false;
    rp_tensor *from = flat_params(l);
    int64_t more = 0;
    bool best = false;
    if (l->strong_wolfe) {
        const point p = search(l, from, (point){0, *loss, slope, *grad}, v[LENGTH], l->max_eval - *evaluations, &more);
        *loss = p.f;
        *grad = p.grad;
        v[LENGTH] = p.t;
        move(l, from, p.t);
        best = largest(*grad) <= l->tolerance_grad;
    } else {
        move(l, from, v[LENGTH]);
        if (done + 1 != l->max_iter) {
            *loss = evaluate(l, NULL);
            *grad = flat_grad(l);
            best = largest(*grad) <= l->tolerance_grad;
            more = 1;
        }
    }
    *evaluations += more;
    v[FUNC_EVALS] += (double)more;
    if (so_far(l) != RP_OK || done + 1 == l->max_iter || *evaluations >= l->max_eval || best) return false;
    return largest(l->tensors[D]) * fabs(v[LENGTH]) > l->tolerance_change &&
           !(fabs(*loss - v[PREV_LOSS]) < l->tolerance_change);
}

/* Numbers may have been loaded. */
static rp_status numbers_read(rp_lbfgs *l) {
    RP_TRY(rp_to_host(l->tensors[SAVED], l->numbers, sizeof l->numbers));
    const double stored = l->numbers[STORED], first = l->numbers[FIRST];
    if (!(stored >= 0 && stored <= (double)l->history && first >= 0 && first < (double)l->history))
        return rp__fail(RP_ERROR_STATE, "rp_lbfgs_step: the state does not fit a history of %lld",
                        (long long)l->history);
    for (int64_t at = 0; at < (int64_t)stored; at++)
        l->ro[at] = 1 / dot(row(l->tensors[DIRS], at), row(l->tensors[STEPS], at));
    return so_far(l);
}

static rp_status numbers_write(rp_lbfgs *l) {
    rp_device device = rp_default_device();
    RP_TRY(rp_set_default_device(l->tensors[SAVED]->device));
    rp_tensor *t = rp_from_data(l->numbers, RP_DIMS(NUMBERS), RP_F64);
    RP_TRY(rp_set_default_device(device));
    return rp__tensor_is_error(rp_copy_(l->tensors[SAVED], t)) ? rp_error_status() : RP_OK;
}

static rp_status step(rp_lbfgs *l, rp_tensor **first) {
    RP_TRY(numbers_read(l));
    double loss = evaluate(l, first);
    int64_t evaluations = 1;
    l->numbers[FUNC_EVALS] += 1;
    rp_tensor *grad = flat_grad(l);
    bool goes_on = largest(grad) > l->tolerance_grad;
    for (int64_t i = 0; goes_on && i < l->max_iter && so_far(l) == RP_OK; i++) {
        rp_scope scope = rp__scope_begin();
        if (!scope.id) return rp_error_status();
        goes_on = iterate(l, i, &evaluations, &loss, &grad);
        rp__scope_end(scope, &grad, 1);
    }
    RP_TRY(so_far(l));
    return numbers_write(l);
}

rp_tensor *rp_lbfgs_step_at(const char *site, rp_lbfgs *l, rp_lbfgs_closure *closure, void *ctx) {
    RP__CALLED_FROM(site);
    if (lbfgs_check(l, "rp_lbfgs_step") != RP_OK) return rp__tensor_error();
    if (!closure) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_lbfgs_step: the function is NULL");
        return rp__tensor_error();
    }
    l->closure = closure;
    l->ctx = ctx;
    l->failures = rp__error_count();
    rp_tensor *first = rp__tensor_error();
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? step(l, &first) : rp_error_status();
    rp__scope_end(scope, &first, 1);
    (void)rp_set_grad_enabled(grad_mode);
    return status == RP_OK ? first : rp__tensor_error();
}

rp_tensor *rp__lbfgs_tensor(const rp_lbfgs *l, size_t k, const char **name) {
    if (lbfgs_check(l, "rp_save or rp_load") != RP_OK) return rp__tensor_error();
    *name = names[k];
    return l->tensors[k];
}
