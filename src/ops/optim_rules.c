/* The table of update rules: torch.optim's arithmetic, one function a rule. Numbers that a rule derives from its
   options are derived in double precision on the host; what depends on the step is calculated in the kernel. */
#include "ops/optim.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- arithmetic */

static rp__val op1(const rp__update *u, rp__prim op, rp__val x) {
    return rp__dag_op(u->b, op, x, RP__NO_VAL, RP__NO_VAL);
}
static rp__val op2(const rp__update *u, rp__prim op, rp__val x, rp__val y) {
    return rp__dag_op(u->b, op, x, y, RP__NO_VAL);
}
static rp__val add(const rp__update *u, rp__val x, rp__val y) { return op2(u, RP__ADD, x, y); }
static rp__val sub(const rp__update *u, rp__val x, rp__val y) { return op2(u, RP__SUB, x, y); }
static rp__val mul(const rp__update *u, rp__val x, rp__val y) { return op2(u, RP__MUL, x, y); }
static rp__val quotient(const rp__update *u, rp__val x, rp__val y) { return op2(u, RP__DIV, x, y); }
static rp__val root(const rp__update *u, rp__val x) { return op1(u, RP__SQRT, x); }
static rp__val where(const rp__update *u, rp__val c, rp__val x, rp__val y) {
    return rp__dag_op(u->b, RP__WHERE, c, x, y);
}
static rp__val number(const rp__update *u, double x) { return rp__dag_const(u->b, u->type, rp_f64(x)); }
static rp__val scalar(const rp__update *u, uint16_t k) { return rp__dag_scalar_value(u->b, k, u->type); }
/* x + weight (y - x) */
static rp__val lerp_by(const rp__update *u, rp__val x, rp__val y, rp__val weight) {
    return add(u, x, mul(u, weight, sub(u, y, x)));
}
static rp__val lerp(const rp__update *u, rp__val x, rp__val y, uint16_t weight) {
    return lerp_by(u, x, y, scalar(u, weight));
}
/* A momentum or beta1, what is left of 1, and its logarithm: scalar k, or of the tensor, in its type until they are done. */
static rp__val momentum(const rp__update *u, uint16_t k) {
    return u->momentum == RP__NO_VAL ? scalar(u, k) : rp__dag_cast(u->b, u->momentum, u->type);
}
static rp__val momentum_rest(const rp__update *u, uint16_t k) {
    if (u->momentum == RP__NO_VAL) return scalar(u, k);
    rp__val one = rp__dag_const(u->b, rp__dag_dtype(u->b, u->momentum), rp_f64(1));
    return rp__dag_cast(u->b, sub(u, one, u->momentum), u->type);
}
static rp__val momentum_log(const rp__update *u, uint16_t k) {
    return u->momentum == RP__NO_VAL ? scalar(u, k) : rp__dag_cast(u->b, op1(u, RP__LOG, u->momentum), u->type);
}
/* decay x + weight y y */
static rp__val squares(const rp__update *u, rp__val x, rp__val y, uint16_t decay, uint16_t weight) {
    return add(u, mul(u, scalar(u, decay), x), mul(u, scalar(u, weight), mul(u, y, y)));
}
/* 1 - beta^t = -expm1(t log beta): exact to the last digits also for the first steps. */
static rp__val correction_of(const rp__update *u, rp__val log_beta) {
    return op1(u, RP__NEG, op1(u, RP__EXPM1, mul(u, u->step, log_beta)));
}
static rp__val correction(const rp__update *u, uint16_t log_beta) { return correction_of(u, scalar(u, log_beta)); }

#define SELF u->list[0]
#define GRAD u->list[1]
#define STATE(k) u->list[2 + (k)]

/* Which way, and the weight decay: of the gradient, or of the parameter. */
static void prepare(rp__update *u, uint16_t decay) {
    if (u->flags & RP__UPDATE_MAXIMIZE) GRAD = op1(u, RP__NEG, GRAD);
    if (!(u->flags & RP__UPDATE_DECAY)) return;
    if (u->flags & RP__UPDATE_DECOUPLED)
        SELF = sub(u, SELF, mul(u, mul(u, u->lr, scalar(u, decay)), SELF));
    else
        GRAD = add(u, GRAD, mul(u, scalar(u, decay), SELF));
}

static void descend(rp__update *u, rp__val size, rp__val direction) { SELF = sub(u, SELF, mul(u, size, direction)); }

static bool is_beta(double x) { return x >= 0 && x < 1; }

/* ---------------------------------------------------------------- SGD */

enum { S_MOMENTUM, S_ONE_MINUS_DAMPENING, S_DECAY, S_SCALARS };

static const char *check_sgd(const double *n, uint32_t flags) {
    if (!(n[0] >= 0)) return "Invalid momentum value";
    if (!(n[2] >= 0)) return "Invalid weight_decay value";
    return flags & RP__UPDATE_NESTEROV && (n[0] == 0 || n[1] != 0)
               ? "Nesterov momentum requires a momentum and zero dampening"
               : NULL;
}

static void scalars_sgd(const double *n, rp_scalar *s) {
    s[S_MOMENTUM] = rp_f64(n[0]);
    s[S_ONE_MINUS_DAMPENING] = rp_f64(1 - n[1]);
    s[S_DECAY] = rp_f64(n[2]);
}

/* The first gradient enters the buffer whole. A buffer of zeros does that by itself, except under dampening: there
   the kernel asks the step, so that a recorded step is right at every replay. */
static void build_sgd(rp__update *u) {
    prepare(u, S_DECAY);
    rp__val direction = GRAD;
    if (u->flags & RP__UPDATE_MOMENTUM) {
        rp__val v = add(u, mul(u, momentum(u, S_MOMENTUM), STATE(0)), mul(u, scalar(u, S_ONE_MINUS_DAMPENING), GRAD));
        if (u->flags & RP__UPDATE_DAMPENED) v = where(u, op2(u, RP__LT, number(u, 1), u->step), v, GRAD);
        STATE(0) = v;
        direction = u->flags & RP__UPDATE_NESTEROV ? add(u, GRAD, mul(u, momentum(u, S_MOMENTUM), v)) : v;
    }
    descend(u, u->lr, direction);
}

/* ---------------------------------------------------------------- Adam and its kin */

enum { A_LOG_BETA1, A_LOG_BETA2, A_BETA2, A_ONE_MINUS_BETA1, A_ONE_MINUS_BETA2, A_EPS, A_DECAY, A_SCALARS };
enum { N_BETA1 = A_SCALARS, N_LOG_MOMENTUM, N_SCALARS };
enum { R_RHO = A_SCALARS, R_SCALARS };

static const char *check_adam(const double *n, uint32_t flags) {
    (void)flags;
    if (!is_beta(n[0])) return "Invalid beta parameter at index 0";
    if (!is_beta(n[1])) return "Invalid beta parameter at index 1";
    if (!(n[2] >= 0)) return "Invalid epsilon value";
    return n[3] >= 0 ? NULL : "Invalid weight_decay value";
}

static const char *check_nadam(const double *n, uint32_t flags) {
    return n[4] >= 0 ? check_adam(n, flags) : "Invalid momentum_decay value";
}

static void scalars_adam(const double *n, rp_scalar *s) {
    s[A_LOG_BETA1] = rp_f64(log(n[0]));
    s[A_LOG_BETA2] = rp_f64(log(n[1]));
    s[A_BETA2] = rp_f64(n[1]);
    s[A_ONE_MINUS_BETA1] = rp_f64(1 - n[0]);
    s[A_ONE_MINUS_BETA2] = rp_f64(1 - n[1]);
    s[A_EPS] = rp_f64(n[2]);
    s[A_DECAY] = rp_f64(n[3]);
}

static void scalars_nadam(const double *n, rp_scalar *s) {
    scalars_adam(n, s);
    s[N_BETA1] = rp_f64(n[0]);
    s[N_LOG_MOMENTUM] = rp_f64(n[4] * log(0.96));
}

static void scalars_radam(const double *n, rp_scalar *s) {
    scalars_adam(n, s);
    s[R_RHO] = rp_f64(2 / (1 - n[1]) - 1);
}

static void moments(rp__update *u) {
    STATE(0) = lerp_by(u, STATE(0), GRAD, momentum_rest(u, A_ONE_MINUS_BETA1));
    STATE(1) = squares(u, STATE(1), GRAD, A_BETA2, A_ONE_MINUS_BETA2);
}

static void build_adam(rp__update *u) {
    prepare(u, A_DECAY);
    moments(u);
    if (u->flags & RP__UPDATE_AMSGRAD) STATE(2) = op2(u, RP__MAX, STATE(2), STATE(1));
    rp__val most = u->flags & RP__UPDATE_AMSGRAD ? STATE(2) : STATE(1);
    rp__val denominator = add(u, quotient(u, root(u, most), root(u, correction(u, A_LOG_BETA2))), scalar(u, A_EPS));
    descend(u, quotient(u, u->lr, correction_of(u, momentum_log(u, A_LOG_BETA1))), quotient(u, STATE(0), denominator));
}

static void build_adamax(rp__update *u) {
    prepare(u, A_DECAY);
    STATE(0) = lerp_by(u, STATE(0), GRAD, momentum_rest(u, A_ONE_MINUS_BETA1));
    rp__val size = add(u, op1(u, RP__ABS, GRAD), scalar(u, A_EPS));
    STATE(1) = op2(u, RP__MAX, mul(u, scalar(u, A_BETA2), STATE(1)), size);
    descend(u, quotient(u, u->lr, correction_of(u, momentum_log(u, A_LOG_BETA1))), quotient(u, STATE(0), STATE(1)));
}

/* beta1 (1 - 0.96^(t momentum_decay) / 2) */
static rp__val momentum_at(rp__update *u, rp__val t) {
    rp__val power = op1(u, RP__EXP, mul(u, t, scalar(u, N_LOG_MOMENTUM)));
    return mul(u, momentum(u, N_BETA1), sub(u, number(u, 1), mul(u, number(u, 0.5), power)));
}

static void build_nadam(rp__update *u) {
    prepare(u, A_DECAY);
    rp__val one = number(u, 1), mu = momentum_at(u, u->step), next = momentum_at(u, add(u, u->step, one));
    moments(u);
    rp__val denominator = add(u, root(u, quotient(u, STATE(1), correction(u, A_LOG_BETA2))), scalar(u, A_EPS));
    rp__val of_grad = quotient(u, mul(u, u->lr, sub(u, one, mu)), sub(u, one, u->extra));
    rp__val of_mean = quotient(u, mul(u, u->lr, next), sub(u, one, mul(u, u->extra, next)));
    descend(u, of_grad, quotient(u, GRAD, denominator));
    descend(u, of_mean, quotient(u, STATE(0), denominator));
}

/* The length of the average, of which two large numbers are the difference, is calculated in float64: the first steps
   are decided by it. */
static void build_radam(rp__update *u) {
    prepare(u, A_DECAY);
    moments(u);
    rp__update wide = *u, *w = &wide;
    w->type = RP_F64;
    w->step = rp__dag_cast(u->b, rp__dag_load(u->b, u->step_access, RP__NO_VAL, RP__NO_VAL), RP_F64);
    rp__val c2 = correction(w, A_LOG_BETA2), rho = scalar(w, R_RHO), four = number(w, 4), two = number(w, 2);
    rp__val power = sub(w, number(w, 1), c2);
    rp__val length = sub(w, rho, quotient(w, mul(w, mul(w, two, w->step), power), c2));
    rp__val part = mul(w, mul(w, sub(w, length, four), sub(w, length, two)), rho);
    rp__val whole = mul(w, mul(w, sub(w, rho, four), sub(w, rho, two)), length);
    rp__val rectified = op2(w, RP__LT, number(w, 5), length);
    rp__val factor = root(w, quotient(w, mul(w, part, c2), whole));
    rp__val narrow = rp__dag_cast(u->b, where(w, rectified, factor, number(w, 1)), u->type);
    rp__val divisor = where(u, rectified, add(u, root(u, STATE(1)), scalar(u, A_EPS)), number(u, 1));
    descend(u, mul(u, quotient(u, u->lr, correction_of(u, momentum_log(u, A_LOG_BETA1))), narrow),
            quotient(u, STATE(0), divisor));
}

/* The update alone: its norm and the parameter's decide how far it goes. */
static void build_lamb(rp__update *u) {
    if (u->flags & RP__UPDATE_MAXIMIZE) GRAD = op1(u, RP__NEG, GRAD);
    moments(u);
    rp__val denominator = add(u, quotient(u, root(u, STATE(1)), root(u, correction(u, A_LOG_BETA2))), scalar(u, A_EPS));
    SELF = quotient(u, quotient(u, STATE(0), correction_of(u, momentum_log(u, A_LOG_BETA1))), denominator);
    if (u->flags & RP__UPDATE_DECAY) SELF = add(u, SELF, mul(u, scalar(u, A_DECAY), STATE(2)));
}

/* ---------------------------------------------------------------- RMSprop, Adagrad, Adadelta, Lion */

enum { P_ALPHA, P_ONE_MINUS_ALPHA, P_EPS, P_DECAY, P_MOMENTUM, P_SCALARS };

static const char *check_rmsprop(const double *n, uint32_t flags) {
    (void)flags;
    if (!(n[0] >= 0)) return "Invalid alpha value";
    if (!(n[1] >= 0)) return "Invalid epsilon value";
    if (!(n[2] >= 0)) return "Invalid weight_decay value";
    return n[3] >= 0 ? NULL : "Invalid momentum value";
}

static void scalars_rmsprop(const double *n, rp_scalar *s) {
    s[P_ALPHA] = rp_f64(n[0]);
    s[P_ONE_MINUS_ALPHA] = rp_f64(1 - n[0]);
    s[P_EPS] = rp_f64(n[1]);
    s[P_DECAY] = rp_f64(n[2]);
    s[P_MOMENTUM] = rp_f64(n[3]);
}

static void build_rmsprop(rp__update *u) {
    prepare(u, P_DECAY);
    STATE(0) = squares(u, STATE(0), GRAD, P_ALPHA, P_ONE_MINUS_ALPHA);
    rp__val mean = STATE(0);
    if (u->flags & RP__UPDATE_CENTERED) {
        STATE(2) = lerp(u, STATE(2), GRAD, P_ONE_MINUS_ALPHA);
        mean = sub(u, mean, mul(u, STATE(2), STATE(2)));
    }
    rp__val direction = quotient(u, GRAD, add(u, root(u, mean), scalar(u, P_EPS)));
    if (u->flags & RP__UPDATE_MOMENTUM)
        direction = STATE(1) = add(u, mul(u, momentum(u, P_MOMENTUM), STATE(1)), direction);
    descend(u, u->lr, direction);
}

enum { G_LR_DECAY, G_DECAY, G_EPS, G_SCALARS };

static const char *check_adagrad(const double *n, uint32_t flags) {
    (void)flags;
    if (!(n[0] >= 0)) return "Invalid lr_decay value";
    if (!(n[1] >= 0)) return "Invalid weight_decay value";
    return n[2] >= 0 ? NULL : "Invalid epsilon value";
}

static void scalars_adagrad(const double *n, rp_scalar *s) {
    for (int k = 0; k < G_SCALARS; k++) s[k] = rp_f64(n[k]);
}

static void build_adagrad(rp__update *u) {
    prepare(u, G_DECAY);
    STATE(0) = add(u, STATE(0), mul(u, GRAD, GRAD));
    rp__val one = number(u, 1), age = add(u, one, mul(u, sub(u, u->step, one), scalar(u, G_LR_DECAY)));
    descend(u, quotient(u, u->lr, age), quotient(u, GRAD, add(u, root(u, STATE(0)), scalar(u, G_EPS))));
}

enum { D_RHO, D_ONE_MINUS_RHO, D_EPS, D_DECAY, D_SCALARS };

static const char *check_adadelta(const double *n, uint32_t flags) {
    (void)flags;
    if (!(n[0] >= 0 && n[0] <= 1)) return "Invalid rho value";
    if (!(n[1] >= 0)) return "Invalid epsilon value";
    return n[2] >= 0 ? NULL : "Invalid weight_decay value";
}

static void scalars_adadelta(const double *n, rp_scalar *s) {
    s[D_RHO] = rp_f64(n[0]);
    s[D_ONE_MINUS_RHO] = rp_f64(1 - n[0]);
    s[D_EPS] = rp_f64(n[1]);
    s[D_DECAY] = rp_f64(n[2]);
}

static void build_adadelta(rp__update *u) {
    prepare(u, D_DECAY);
    rp__val eps = scalar(u, D_EPS);
    STATE(0) = squares(u, STATE(0), GRAD, D_RHO, D_ONE_MINUS_RHO);
    rp__val size = quotient(u, root(u, add(u, STATE(1), eps)), root(u, add(u, STATE(0), eps)));
    rp__val delta = mul(u, size, GRAD);
    STATE(1) = squares(u, STATE(1), delta, D_RHO, D_ONE_MINUS_RHO);
    descend(u, u->lr, delta);
}

enum { L_ONE_MINUS_BETA1, L_ONE_MINUS_BETA2, L_DECAY, L_SCALARS };

static const char *check_lion(const double *n, uint32_t flags) {
    (void)flags;
    if (!is_beta(n[0])) return "Invalid beta parameter at index 0";
    if (!is_beta(n[1])) return "Invalid beta parameter at index 1";
    return n[2] >= 0 ? NULL : "Invalid weight_decay value";
}

static void scalars_lion(const double *n, rp_scalar *s) {
    s[L_ONE_MINUS_BETA1] = rp_f64(1 - n[0]);
    s[L_ONE_MINUS_BETA2] = rp_f64(1 - n[1]);
    s[L_DECAY] = rp_f64(n[2]);
}

static void build_lion(rp__update *u) {
    prepare(u, L_DECAY);
    rp__val direction = op1(u, RP__SIGN, lerp_by(u, STATE(0), GRAD, momentum_rest(u, L_ONE_MINUS_BETA1)));
    STATE(0) = lerp(u, STATE(0), GRAD, L_ONE_MINUS_BETA2);
    descend(u, u->lr, direction);
}

/* ---------------------------------------------------------------- updates that are no optimizers */

static void scalars_one(const double *n, rp_scalar *s) { s[0] = rp_f64(n[0]); }
static void scalars_two(const double *n, rp_scalar *s) {
    s[0] = rp_f64(n[0]);
    s[1] = rp_f64(n[1]);
}
static void build_descend(rp__update *u) { descend(u, mul(u, u->lr, STATE(0)), GRAD); }
static void build_scale(rp__update *u) { SELF = mul(u, SELF, u->extra); }
static void build_clamp(rp__update *u) { SELF = op2(u, RP__MIN, op2(u, RP__MAX, SELF, scalar(u, 0)), scalar(u, 1)); }
static void build_ema(rp__update *u) {
    SELF = where(u, op2(u, RP__LT, number(u, 1), u->step), lerp(u, SELF, GRAD, 0), GRAD);
}
static void build_average(rp__update *u) { SELF = add(u, SELF, quotient(u, sub(u, GRAD, SELF), u->step)); }

/* ---------------------------------------------------------------- the table */

enum {
    STEPPED = RP__SELF | RP__OTHER,
    ONE = STEPPED | RP__FIRST,
    TWO = ONE | RP__SECOND,
    COMMON = RP__UPDATE_DECAY | RP__UPDATE_MAXIMIZE
};

static const rp__update_rule rules[] = {
    {.name = "sgd",
     .lists = STEPPED,
     .written = RP__SELF,
     .momentum = RP__FIRST,
     .step = true,
     .lr = true,
     .cycles = true,
     .n_numbers = 3,
     .n_scalars = S_SCALARS,
     .flags = COMMON | RP__UPDATE_MOMENTUM | RP__UPDATE_NESTEROV | RP__UPDATE_DAMPENED,
     .check = check_sgd,
     .scalars = scalars_sgd,
     .build = build_sgd},
    {.name = "adam",
     .lists = TWO,
     .written = TWO & ~RP__OTHER,
     .amsgrad = RP__THIRD,
     .step = true,
     .lr = true,
     .cycles = true,
     .n_numbers = 4,
     .n_scalars = A_SCALARS,
     .flags = COMMON | RP__UPDATE_DECOUPLED | RP__UPDATE_AMSGRAD,
     .check = check_adam,
     .scalars = scalars_adam,
     .build = build_adam},
    {.name = "adamax",
     .lists = TWO,
     .written = TWO & ~RP__OTHER,
     .step = true,
     .lr = true,
     .cycles = true,
     .n_numbers = 4,
     .n_scalars = A_SCALARS,
     .flags = COMMON,
     .check = check_adam,
     .scalars = scalars_adam,
     .build = build_adamax},
    {.name = "nadam",
     .lists = TWO,
     .written = TWO & ~RP__OTHER,
     .step = true,
     .lr = true,
     .extra = true,
     .cycles = true,
     .n_numbers = 5,
     .n_scalars = N_SCALARS,
     .flags = COMMON | RP__UPDATE_DECOUPLED,
     .check = check_nadam,
     .scalars = scalars_nadam,
     .build = build_nadam},
    {.name = "radam",
     .lists = TWO,
     .written = TWO & ~RP__OTHER,
     .step = true,
     .lr = true,
     .cycles = true,
     .n_numbers = 4,
     .n_scalars = R_SCALARS,
     .flags = COMMON | RP__UPDATE_DECOUPLED,
     .check = check_adam,
     .scalars = scalars_radam,
     .build = build_radam},
    {.name = "rmsprop",
     .lists = ONE,
     .written = ONE & ~RP__OTHER,
     .momentum = RP__SECOND,
     .centered = RP__THIRD,
     .lr = true,
     .cycles = true,
     .n_numbers = 4,
     .n_scalars = P_SCALARS,
     .flags = COMMON | RP__UPDATE_MOMENTUM | RP__UPDATE_CENTERED,
     .check = check_rmsprop,
     .scalars = scalars_rmsprop,
     .build = build_rmsprop},
    {.name = "adagrad",
     .lists = ONE,
     .written = ONE & ~RP__OTHER,
     .step = true,
     .lr = true,
     .n_numbers = 3,
     .n_scalars = G_SCALARS,
     .flags = COMMON,
     .check = check_adagrad,
     .scalars = scalars_adagrad,
     .build = build_adagrad},
    {.name = "adadelta",
     .lists = TWO,
     .written = TWO & ~RP__OTHER,
     .lr = true,
     .n_numbers = 3,
     .n_scalars = D_SCALARS,
     .flags = COMMON,
     .check = check_adadelta,
     .scalars = scalars_adadelta,
     .build = build_adadelta},
    {.name = "lion",
     .lists = ONE,
     .written = ONE & ~RP__OTHER,
     .lr = true,
     .cycles = true,
     .n_numbers = 3,
     .n_scalars = L_SCALARS,
     .flags = COMMON | RP__UPDATE_DECOUPLED,
     .check = check_lion,
     .scalars = scalars_lion,
     .build = build_lion},
    {.name = "lamb",
     .lists = TWO | RP__THIRD,
     .written = TWO & ~RP__OTHER,
     .step = true,
     .cycles = true,
     .n_numbers = 4,
     .n_scalars = A_SCALARS,
     .flags = COMMON,
     .check = check_adam,
     .scalars = scalars_adam,
     .build = build_lamb},
    {.name = "descend", .lists = ONE, .numbers = RP__FIRST, .written = RP__SELF, .lr = true, .build = build_descend},
    {.name = "scale", .lists = RP__SELF, .written = RP__SELF, .extra = true, .build = build_scale},
    {.name = "clamp",
     .lists = RP__SELF,
     .written = RP__SELF,
     .n_numbers = 2,
     .n_scalars = 2,
     .scalars = scalars_two,
     .build = build_clamp},
    {.name = "ema",
     .lists = STEPPED,
     .written = RP__SELF,
     .step = true,
     .n_numbers = 1,
     .n_scalars = 1,
     .scalars = scalars_one,
     .build = build_ema},
    {.name = "average", .lists = STEPPED, .written = RP__SELF, .step = true, .build = build_average},
};

const rp__update_rule *rp__update_rule_find(const char *name) {
    for (size_t i = 0; name && i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i].name, name) == 0) return &rules[i];
    return NULL;
}
