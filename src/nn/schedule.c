/* Learning rates as pure functions of the step: torch.optim.lr_scheduler's closed forms, written with ops on a step
   that lies on the device, so that a recorded step computes its own rate. A schedule is a tree of plain data; whoever
   holds one has a copy. */
#include "ops/private.h"
#include <reprise_nn.h>

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/handle.h"
#include "core/options.h"
#include "nn/schedule.h"
#include "tensor/tensor.h"

typedef enum kind {
    CONSTANT,
    LINEAR,
    STEP,
    MULTISTEP,
    EXPONENTIAL,
    POLYNOMIAL,
    COSINE,
    COSINE_RESTARTS,
    ONE_CYCLE,
    CYCLIC,
    LAMBDA,
    SEQUENTIAL,
    CHAINED
} kind;

enum { NUMBERS = 7 };
struct rp__schedule {
    kind kind;
    double n[NUMBERS];   /* of each kind: see its function of this name */
    bool linear, phases; /* ONE_CYCLE */
    bool cycles;         /* ONE_CYCLE, CYCLIC: the momentum, too */
    int mode;            /* CYCLIC */
    double *milestones;
    size_t n_milestones;
    rp__schedule **parts;
    size_t n_parts;
    rp_schedule_fn *fn;
    void *ctx;
};

struct rp_schedule {
    rp__handle handle;
    rp__schedule *s;
};

static rp_schedule failed_schedule; /* returned where one could not be made */

/* ---------------------------------------------------------------- trees */

void rp__schedule_free(rp__schedule *s) {
    if (!s) return;
    for (size_t i = 0; s->parts && i < s->n_parts; i++) rp__schedule_free(s->parts[i]);
    rp__free(s->parts);
    rp__free(s->milestones);
    rp__free(s);
}

static rp__schedule *copy(const rp__schedule *from) {
    rp__schedule *s = rp__calloc(1, sizeof *s);
    if (!s) return NULL;
    *s = *from;
    s->milestones = rp__calloc(from->n_milestones + 1, sizeof *s->milestones);
    s->parts = rp__calloc(from->n_parts + 1, sizeof *s->parts);
    bool whole = s->milestones && s->parts;
    if (whole && from->n_milestones)
        memcpy(s->milestones, from->milestones, from->n_milestones * sizeof *s->milestones);
    for (size_t i = 0; i < from->n_parts && whole; i++) whole = (s->parts[i] = copy(from->parts[i])) != NULL;
    if (whole) return s;
    rp__schedule_free(s);
    return NULL;
}

static const rp__schedule *tree_of(const rp_schedule *s, const char *call) {
    if (s == &failed_schedule) {
        (void)rp__fail(RP_ERROR_STATE, "%s: the schedule could not be made", call);
        return NULL;
    }
    return rp__handle_check(s, RP__HANDLE_SCHEDULE, call) == RP_OK ? s->s : NULL;
}

rp__schedule *rp__schedule_copy(const rp_schedule *s) {
    const rp__schedule *tree = tree_of(s, "schedule");
    rp__schedule *own = tree ? copy(tree) : NULL;
    if (tree && !own) (void)RP__OOM("a schedule");
    return own;
}

void rp_schedule_release(rp_schedule *s) {
    if (!s || s == &failed_schedule || !rp__handle_give_up(s, RP__HANDLE_SCHEDULE, "rp_schedule_release")) return;
    rp__schedule_free(s->s);
    rp__handle_free(s);
}

/* wrong: what is the matter with the arguments, NULL: nothing. */
static rp_schedule *make(const char *call, const rp__schedule *tree, const char *wrong) {
    if (wrong) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: %s", call, wrong);
        return &failed_schedule;
    }
    rp_schedule *s = rp__handle_new(RP__HANDLE_SCHEDULE, sizeof *s);
    if (s && (s->s = copy(tree))) return s;
    (void)RP__OOM("a schedule");
    if (s) rp__handle_free(s);
    return &failed_schedule;
}

/* ---------------------------------------------------------------- arithmetic, in float64 */

static rp_tensor *times(rp_tensor *t, double x) { return rp_mul_scalar(t, rp_f64(x)); }
static rp_tensor *plus(rp_tensor *t, double x) { return rp_add_scalar(t, rp_f64(x)); }
static rp_tensor *at_most(rp_tensor *t, double x) { return rp_clamp(t, rp_none(), rp_f64(x)); }
static rp_tensor *at_least(rp_tensor *t, double x) { return rp_clamp(t, rp_f64(x), rp_none()); }
/* x^t */
static rp_tensor *power(double x, rp_tensor *t) { return rp_pow(plus(times(t, 0), x), t); }
/* (1 + cos(pi t)) / 2 */
static rp_tensor *half_wave(rp_tensor *t) { return times(plus(rp_cos(times(t, acos(-1.0))), 1), 0.5); }

typedef struct arguments {
    const rp__schedule *s;
    rp_tensor *t;
    double base;
} arguments;
#define N(k) a.s->n[k]

/* factor, total */
static rp_tensor *constant(arguments a) {
    rp_tensor *rate = plus(times(a.t, 0), a.base);
    return rp_where(rp_lt_scalar(a.t, rp_f64(N(1))), times(rate, N(0)), rate);
}

/* start, end, total */
static rp_tensor *linear(arguments a) {
    return times(plus(times(at_most(a.t, N(2)), (N(1) - N(0)) / N(2)), N(0)), a.base);
}

/* size, gamma */
static rp_tensor *stepwise(arguments a) {
    return times(power(N(1), rp_floor(times(plus(a.t, 0.5), 1 / N(0)))), a.base);
}

/* gamma; milestones */
static rp_tensor *multistep(arguments a) {
    rp_tensor *passed = times(a.t, 0);
    for (size_t i = 0; i < a.s->n_milestones; i++)
        passed = rp_add(passed, rp_to_dtype(rp_ge_scalar(a.t, rp_f64(a.s->milestones[i])), RP_F64));
    return times(power(N(0), passed), a.base);
}

/* gamma */
static rp_tensor *exponential(arguments a) { return times(power(N(0), a.t), a.base); }

/* total, power */
static rp_tensor *polynomial(arguments a) {
    return times(rp_pow_scalar(plus(times(at_most(a.t, N(0)), -1 / N(0)), 1), rp_f64(N(1))), a.base);
}

/* period, least */
static rp_tensor *cosine(arguments a) { return plus(times(half_wave(times(a.t, 1 / N(0))), a.base - N(1)), N(1)); }

/* first period, growth, least. Half a step more than t decides which period it is: t may be the end of one, exactly. */
static rp_tensor *cosine_restarts(arguments a) {
    rp_tensor *t = a.t, *period;
    if (N(1) == 1) {
        t = rp_sub(t, times(rp_floor(times(plus(t, 0.5), 1 / N(0))), N(0)));
        period = plus(times(t, 0), N(0));
    } else {
        rp_tensor *age = plus(times(plus(t, 0.5), (N(1) - 1) / N(0)), 1);
        rp_tensor *grown = rp_round(power(N(1), rp_floor(times(rp_log(age), 1 / log(N(1))))));
        t = rp_sub(t, times(plus(grown, -1), N(0) / (N(1) - 1)));
        period = times(grown, N(0));
    }
    return plus(times(half_wave(rp_div(t, period)), a.base - N(2)), N(2));
}

/* From x at step `begin` to y at step `end`. */
static rp_tensor *anneal(arguments a, double x, double y, double begin, double end) {
    rp_tensor *part = times(plus(a.t, -begin), 1 / (end - begin));
    return a.s->linear ? plus(times(part, y - x), x) : plus(times(half_wave(part), x - y), y);
}

/* most, total, part of the rise, divisor of the first rate, of the last; least and most momentum. From `first` to `turn` and on
   to `last`, in three phases through `first` again. */
static rp_tensor *one_cycle_over(arguments a, double first, double turn, double last) {
    const double total = N(1), peak = N(2) * total - 1;
    a.t = at_most(a.t, total - 1);
    rp_tensor *rise = anneal(a, first, turn, 0, peak), *fall;
    if (a.s->phases) {
        const double back = 2 * N(2) * total - 2;
        fall = rp_where(rp_le_scalar(a.t, rp_f64(back)), anneal(a, turn, first, peak, back),
                        anneal(a, first, last, back, total - 1));
    } else {
        fall = anneal(a, turn, last, peak, total - 1);
    }
    return rp_where(rp_le_scalar(a.t, rp_f64(peak)), rise, fall);
}
static rp_tensor *one_cycle(arguments a) { return one_cycle_over(a, N(0) / N(3), N(0), N(0) / N(3) / N(4)); }

/* least, most, steps up, steps down, gamma; least and most momentum. How high above the least it is, of 1. */
static rp_tensor *cyclic_height(arguments a) {
    const double total = N(2) + N(3), ratio = N(2) / total;
    rp_tensor *cycle = rp_floor(times(plus(a.t, 0.5), 1 / total)); /* from 0 */
    rp_tensor *x = rp_sub(times(a.t, 1 / total), cycle);
    rp_tensor *height =
        rp_where(rp_le_scalar(x, rp_f64(ratio)), times(x, 1 / ratio), times(plus(x, -1), 1 / (ratio - 1)));
    if (a.s->mode == RP_CYCLIC_TRIANGULAR2) height = rp_mul(height, power(0.5, cycle));
    if (a.s->mode == RP_CYCLIC_EXP_RANGE) height = rp_mul(height, power(N(4), a.t));
    return height;
}
static rp_tensor *cyclic(arguments a) { return plus(times(cyclic_height(a), N(1) - N(0)), N(0)); }

/* The function is the program's own, on the host: in a trace, reading the step is what ends a graph. */
static rp_tensor *lambda(arguments a) {
    const int64_t n = rp_numel(a.t);
    double *v = rp__alloc((size_t)(n + 1) * sizeof *v);
    if (!v) {
        (void)RP__OOM("a schedule");
        return rp__tensor_error();
    }
    rp_tensor *rate = rp__tensor_error();
    rp_device device = rp_default_device();
    if (rp_to_host(a.t, v, (size_t)n * sizeof *v) == RP_OK && rp_set_default_device(a.t->device) == RP_OK) {
        for (int64_t i = 0; i < n; i++) v[i] = a.base * a.s->fn(a.s->ctx, (int64_t)v[i]);
        rate = rp_from_data(v, a.t->size, a.t->ndim, RP_F64);
        if (rp_set_default_device(device) != RP_OK) rate = rp__tensor_error();
    }
    rp__free(v);
    return rate;
}

/* Each part counts from its milestone. */
static rp_tensor *sequential(arguments a) {
    rp_tensor *rate = rp__schedule_rate(a.s->parts[0], a.t, a.base);
    for (size_t i = 1; i < a.s->n_parts; i++) {
        const double begin = a.s->milestones[i - 1];
        rp_tensor *next = rp__schedule_rate(a.s->parts[i], at_least(plus(a.t, -begin), 0), a.base);
        rate = rp_where(rp_lt_scalar(a.t, rp_f64(begin)), rate, next);
    }
    return rate;
}

/* The product of what all parts make of 1. */
static rp_tensor *chained(arguments a) {
    rp_tensor *rate = plus(times(a.t, 0), a.base);
    for (size_t i = 0; i < a.s->n_parts; i++) rate = rp_mul(rate, rp__schedule_rate(a.s->parts[i], a.t, 1));
    return rate;
}

rp_tensor *rp__schedule_rate(const rp__schedule *s, rp_tensor *step, double base) {
    static rp_tensor *(*const rates[])(arguments) = {
        [CONSTANT] = constant,       [LINEAR] = linear,         [STEP] = stepwise, [MULTISTEP] = multistep,
        [EXPONENTIAL] = exponential, [POLYNOMIAL] = polynomial, [COSINE] = cosine, [COSINE_RESTARTS] = cosine_restarts,
        [ONE_CYCLE] = one_cycle,     [CYCLIC] = cyclic,         [LAMBDA] = lambda, [SEQUENTIAL] = sequential,
        [CHAINED] = chained,
    };
    return rates[s->kind]((arguments){s, step, base});
}

static bool cycles(const rp__schedule *s) {
    bool any = s->cycles;
    for (size_t i = 0; i < s->n_parts; i++) any = any || cycles(s->parts[i]);
    return any;
}

bool rp__schedule_cycles(const rp_schedule *s) { return rp__handle_is(s, RP__HANDLE_SCHEDULE) && cycles(s->s); }

rp_tensor *rp__schedule_momentum(const rp__schedule *s, rp_tensor *step, double own) {
    const arguments a = {s, step, own};
    if (s->cycles && s->kind == ONE_CYCLE) return one_cycle_over(a, N(6), N(5), N(6));
    if (s->cycles) return plus(times(cyclic_height(a), N(5) - N(6)), N(6));
    rp_tensor *momentum = plus(times(step, 0), own);
    for (size_t i = 0; s->kind == SEQUENTIAL && i < s->n_parts; i++) {
        const double begin = i ? s->milestones[i - 1] : 0;
        rp_tensor *next = rp__schedule_momentum(s->parts[i], at_least(plus(step, -begin), 0), own);
        momentum = rp_where(rp_lt_scalar(step, rp_f64(begin)), momentum, next);
    }
    return momentum;
}

/* What `of` makes of each step, in float64. */
static rp_tensor *over_steps(const char *call, const rp_schedule *s, rp_tensor *step, double base,
                             rp_tensor *(*of)(const rp__schedule *s, rp_tensor *step, double base)) {
    const rp__schedule *tree = tree_of(s, call);
    if (!tree || rp__tensor_check(step, "step") != RP_OK) return rp__tensor_error();
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_tensor *y = scope.id ? of(tree, rp_to_dtype(step, RP_F64), base) : rp__tensor_error();
    rp__scope_end(scope, &y, 1);
    (void)rp_set_grad_enabled(grad_mode);
    return y;
}

rp_tensor *rp_schedule_momentum_at(const char *site, const rp_schedule *s, rp_tensor *step, double own) {
    RP__CALLED_FROM(site);
    return over_steps("rp_schedule_momentum", s, step, own, rp__schedule_momentum);
}

rp_tensor *rp_schedule_rate_at(const char *site, const rp_schedule *s, rp_tensor *step, double base_lr) {
    RP__CALLED_FROM(site);
    return over_steps("rp_schedule_rate", s, step, base_lr, rp__schedule_rate);
}

/* ---------------------------------------------------------------- constructors */

#define TREE(...) (&(const rp__schedule){__VA_ARGS__})

rp_schedule *rp_schedule_constant_at(const char *site, double factor, int64_t total_iters) {
    RP__CALLED_FROM(site);
    return make("rp_schedule_constant", TREE(.kind = CONSTANT, .n = {factor, (double)total_iters}),
                !(factor >= 0 && factor <= 1) ? "the factor must be from 0 to 1"
                : total_iters < 0             ? "total_iters is negative"
                                              : NULL);
}

rp_schedule *rp_schedule_linear_at(const char *site, double start_factor, double end_factor, int64_t total_iters) {
    RP__CALLED_FROM(site);
    return make("rp_schedule_linear", TREE(.kind = LINEAR, .n = {start_factor, end_factor, (double)total_iters}),
                !(start_factor > 0 && start_factor <= 1) ? "the first factor must be above 0, and 1 at most"
                : !(end_factor >= 0 && end_factor <= 1)  ? "the last factor must be from 0 to 1"
                : total_iters <= 0                       ? "total_iters must be above 0"
                                                         : NULL);
}

rp_schedule *rp_schedule_step_at(const char *site, int64_t step_size, double gamma) {
    RP__CALLED_FROM(site);
    return make("rp_schedule_step", TREE(.kind = STEP, .n = {(double)step_size, gamma}),
                step_size <= 0 ? "the step size must be above 0" : NULL);
}

rp_schedule *rp_schedule_multistep_at(const char *site, const int64_t *milestones, size_t n, double gamma) {
    RP__CALLED_FROM(site);
    double at[64];
    const bool fits = n <= sizeof at / sizeof *at && (milestones || !n);
    for (size_t i = 0; fits && i < n; i++) at[i] = (double)milestones[i];
    return make("rp_schedule_multistep",
                TREE(.kind = MULTISTEP, .n = {gamma}, .milestones = at, .n_milestones = fits ? n : 0),
                fits ? NULL : "there may be 64 milestones at most");
}

rp_schedule *rp_schedule_exponential_at(const char *site, double gamma) {
    RP__CALLED_FROM(site);
    return make("rp_schedule_exponential", TREE(.kind = EXPONENTIAL, .n = {gamma}), NULL);
}

rp_schedule *rp_schedule_polynomial_at(const char *site, int64_t total_iters, double exponent) {
    RP__CALLED_FROM(site);
    return make("rp_schedule_polynomial", TREE(.kind = POLYNOMIAL, .n = {(double)total_iters, exponent}),
                total_iters <= 0 ? "total_iters must be above 0" : NULL);
}

rp_schedule *rp_schedule_cosine_at(const char *site, int64_t t_max, double eta_min) {
    RP__CALLED_FROM(site);
    return make("rp_schedule_cosine", TREE(.kind = COSINE, .n = {(double)t_max, eta_min}),
                t_max <= 0 ? "the period must be above 0" : NULL);
}

rp_schedule *rp_schedule_cosine_restarts_at(const char *site, int64_t t_0, int64_t t_mult, double eta_min) {
    RP__CALLED_FROM(site);
    return make("rp_schedule_cosine_restarts",
                TREE(.kind = COSINE_RESTARTS, .n = {(double)t_0, (double)t_mult, eta_min}),
                t_0 <= 0      ? "the first period must be above 0"
                : t_mult <= 0 ? "the growth of periods must be 1 or more"
                              : NULL);
}

/* Of bounds that are 0 for their default, or negative for 0. */
static const char *wrong_momenta(double least, double most) {
    return least < 1 && most < 1 ? NULL : "the momenta must be below 1";
}

rp_schedule *rp_schedule_one_cycle_at(const char *site, double max_lr, int64_t total_steps,
                                      const rp_one_cycle_options *options) {
    RP__CALLED_FROM(site);
    rp_one_cycle_options o;
    if (rp__options_read("rp_schedule_one_cycle", options, sizeof o, &o) != RP_OK) return &failed_schedule;
    const double rise = o.pct_start != 0 ? o.pct_start : 0.3, first = o.div_factor != 0 ? o.div_factor : 25,
                 last = o.final_div_factor != 0 ? o.final_div_factor : 1e4;
    const double peak = rise * (double)total_steps - 1, end = (double)total_steps - 1;
    const double back = o.three_phase ? 2 * peak : end;
    return make("rp_schedule_one_cycle",
                TREE(.kind = ONE_CYCLE,
                     .n = {max_lr, (double)total_steps, rise, first, last, rp__option_or(o.base_momentum, 0.85),
                           rp__option_or(o.max_momentum, 0.95)},
                     .linear = o.linear, .phases = o.three_phase, .cycles = !o.keep_momentum),
                !(rise > 0 && rise <= 1)                     ? "pct_start must be from 0 to 1"
                : !(first > 0 && last > 0)                   ? "div_factor and final_div_factor must be above 0"
                : !(peak > 0 && back >= peak && end >= back) ? "there are too few steps for these phases"
                                                             : wrong_momenta(o.base_momentum, o.max_momentum));
}

rp_schedule *rp_schedule_cyclic_at(const char *site, double base_lr, double max_lr, int64_t step_size_up,
                                   const rp_cyclic_options *options) {
    RP__CALLED_FROM(site);
    rp_cyclic_options o;
    if (rp__options_read("rp_schedule_cyclic", options, sizeof o, &o) != RP_OK) return &failed_schedule;
    const int64_t down = o.step_size_down ? o.step_size_down : step_size_up;
    return make("rp_schedule_cyclic",
                TREE(.kind = CYCLIC,
                     .n = {base_lr, max_lr, (double)step_size_up, (double)down, o.gamma != 0 ? o.gamma : 1,
                           rp__option_or(o.base_momentum, 0.8), rp__option_or(o.max_momentum, 0.9)},
                     .mode = (int)o.mode, .cycles = !o.keep_momentum),
                step_size_up <= 0 || down <= 0           ? "the numbers of steps must be above 0"
                : (unsigned)o.mode > RP_CYCLIC_EXP_RANGE ? "there is no such mode"
                                                         : wrong_momenta(o.base_momentum, o.max_momentum));
}

rp_schedule *rp_schedule_lambda_at(const char *site, rp_schedule_fn *fn, void *ctx) {
    RP__CALLED_FROM(site);
    return make("rp_schedule_lambda", TREE(.kind = LAMBDA, .fn = fn, .ctx = ctx), fn ? NULL : "the function is NULL");
}

/* May it be a factor of others? */
static bool is_factor(const rp__schedule *s) {
    if (s->kind == COSINE) return s->n[1] == 0;
    if (s->kind == COSINE_RESTARTS) return s->n[2] == 0;
    bool all = s->kind != ONE_CYCLE && s->kind != CYCLIC;
    for (size_t i = 0; i < s->n_parts; i++) all = all && is_factor(s->parts[i]);
    return all;
}

enum { MAX_PARTS = 64 };

static rp_schedule *combined(const char *call, kind k, rp_schedule *const *parts, size_t n, const int64_t *milestones) {
    rp__schedule *trees[MAX_PARTS];
    double at[MAX_PARTS];
    const char *wrong = !n || !parts                              ? "the list of schedules is empty"
                        : n > MAX_PARTS                           ? "there may be 64 schedules at most"
                        : k == SEQUENTIAL && n > 1 && !milestones ? "the list of milestones is NULL"
                                                                  : NULL;
    for (size_t i = 0; i < n && !wrong; i++) {
        const rp__schedule *tree = tree_of(parts[i], call);
        if (!tree) return &failed_schedule;
        union {
            const rp__schedule *given;
            rp__schedule *own; /* copied before it is kept */
        } it = {tree};
        trees[i] = it.own;
        if (k == CHAINED && !is_factor(tree))
            wrong = "schedules with rates of their own (one cycle, cyclic, cosine with a least rate) have no factor";
        if (k == SEQUENTIAL && i > 0) {
            at[i - 1] = (double)milestones[i - 1];
            if (milestones[i - 1] < (i > 1 ? milestones[i - 2] : 0)) wrong = "the milestones must grow";
        }
    }
    if (wrong) return make(call, NULL, wrong);
    return make(
        call,
        TREE(.kind = k, .milestones = at, .n_milestones = k == SEQUENTIAL ? n - 1 : 0, .parts = trees, .n_parts = n),
        NULL);
}

rp_schedule *rp_schedule_sequential_at(const char *site, rp_schedule *const *parts, size_t n,
                                       const int64_t *milestones) {
    RP__CALLED_FROM(site);
    return combined("rp_schedule_sequential", SEQUENTIAL, parts, n, milestones);
}

rp_schedule *rp_schedule_chained_at(const char *site, rp_schedule *const *parts, size_t n) {
    RP__CALLED_FROM(site);
    return combined("rp_schedule_chained", CHAINED, parts, n, NULL);
}
