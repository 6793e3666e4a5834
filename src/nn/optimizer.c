/* Optimizers: groups of parameters with their state, and the step that updates them with one op a set of parameters.

   Step counts. PyTorch counts for every parameter, and passes over those without a gradient; one launch has one
   count. The parameters of a group therefore form classes: two are in one class as long as they were always stepped
   together. Classes only ever split. Every parameter has a 0-d count of its own (a view of one vector); a class uses
   that of its first member, and a new class starts from a copy. Nothing is allocated after construction, and which op
   runs on which memory depends on the set of parameters with a gradient and on the classes: that is what a trace
   guards. A class with more members than a call of an op has operands takes several calls.

   What a kind of optimizer is: an update rule (ops/optim.h), the names of what it keeps, and its options as numbers
   and flags. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "core/alloc.h"
#include "core/options.h"
#include "nn/optimizer.h"
#include "nn/schedule.h"
#include "ops/ops.h"
#include "ops/optim.h"

#include <math.h>
#include <string.h>

typedef enum kind_id { SGD, ADAM, ADAMW, ADAMAX, NADAM, RADAM, RMSPROP, ADAGRAD, ADADELTA, LION, LAMB } kind_id;

enum { STATES = 3 };
typedef struct kind {
    const char *name, *rule;
    const char *states[STATES]; /* PyTorch's names of the lists first, second, third; NULL: not part of the state */
    uint32_t cycles; /* flags without which there is no momentum or beta1 that a schedule could cycle; NEVER: none */
} kind;
enum { NEVER = RP__UPDATE_FLAGS };

static const kind kinds[] = {
    [SGD] = {"sgd", "sgd", {"momentum_buffer"}, RP__UPDATE_MOMENTUM},
    [ADAM] = {"adam", "adam", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, 0},
    [ADAMW] = {"adamw", "adam", {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, 0},
    [ADAMAX] = {"adamax", "adamax", {"exp_avg", "exp_inf"}, 0},
    [NADAM] = {"nadam", "nadam", {"exp_avg", "exp_avg_sq"}, 0},
    [RADAM] = {"radam", "radam", {"exp_avg", "exp_avg_sq"}, 0},
    [RMSPROP] = {"rmsprop", "rmsprop", {"square_avg", "momentum_buffer", "grad_avg"}, RP__UPDATE_MOMENTUM},
    [ADAGRAD] = {"adagrad", "adagrad", {"sum"}, NEVER},
    [ADADELTA] = {"adadelta", "adadelta", {"square_avg", "acc_delta"}, NEVER},
    [LION] = {"lion", "lion", {"exp_avg"}, 0},
    [LAMB] = {"lamb", "lamb", {"exp_avg", "exp_avg_sq"}, 0},
};

typedef struct settings {
    double numbers[RP__UPDATE_NUMBERS]; /* of the rule */
    size_t n_numbers;
    uint32_t flags;
    double initial;                /* of the first state's elements */
    bool always_adapt, trust_clip; /* LAMB */
} settings;

typedef struct member {
    rp_tensor *param;
    rp_tensor *state[STATES]; /* NULL: not kept. LAMB's third is its update, in the making */
    rp_tensor *step, *extra;  /* 0-d f32 (extra: NAdam's product of momenta); they hold if the member leads its class */
    size_t leader;            /* first member of its class */
} member;

typedef struct group {
    settings s;
    rp_tensor *lr, *steps, *extras; /* 0-d f32; (n) f32; (n) f32 or NULL */
    rp__schedule *schedule;         /* NULL: none */
    rp_tensor *schedule_step;       /* 0-d i64; NULL without a schedule */
    rp_tensor *momentum;            /* 0-d f64, in the place of the number; NULL: the schedule cycles none */
    double base;                    /* the rate that was set last, of which the schedule makes others */
    member *members;
    size_t n;
    rp_tensor **lists; /* room for the arguments of a step: RP__UPDATE_LISTS + 1 times n */
} group;

struct rp_optimizer {
    rp__handle handle;
    kind_id kind;
    group **groups;
    size_t n, capacity;
    uint64_t id; /* that no other optimizer has */
    uint64_t
        classes; /* another number whenever a class was split, a group added or a schedule set; compiled steps compare it, in memory that
                    outlives us */
};

static rp_optimizer failed_optimizer; /* returned when there is no memory for one */

/* ---------------------------------------------------------------- construction */

static void release(rp_tensor *t) {
    if (t) rp_release(t);
}

static void group_free(group *g) {
    if (!g) return;
    for (size_t i = 0; g->members && i < g->n; i++) {
        member *m = &g->members[i];
        release(m->param);
        for (int k = 0; k < STATES; k++) release(m->state[k]);
        release(m->step);
        release(m->extra);
    }
    release(g->lr);
    release(g->steps);
    release(g->extras);
    release(g->schedule_step);
    release(g->momentum);
    rp__schedule_free(g->schedule);
    rp__free(g->members);
    rp__free(g->lists);
    rp__free(g);
}

/* Takes a result out of the scope's hands; NULL for the error tensor. */
static rp_tensor *own(rp_tensor *t) { return rp__tensor_is_error(t) ? NULL : rp_retain(t); }

static const rp__update_rule *rule_of(kind_id k) { return rp__update_rule_find(kinds[k].rule); }

static rp_status member_fill(group *g, kind_id k, size_t i) {
    member *m = &g->members[i];
    m->step = own(rp_select(g->steps, 0, (int64_t)i));
    if (m->step && g->extras) m->extra = own(rp_select(g->extras, 0, (int64_t)i));
    if (!m->step || (g->extras && !m->extra)) return rp_error_status();
    const uint8_t lists = rp__update_lists(rule_of(k), g->s.flags);
    for (int j = 0; j < STATES; j++) {
        if (!(lists >> (2 + j) & 1u)) continue;
        rp_tensor *zeros = rp_zeros_like(m->param);
        m->state[j] = own(j == 0 && g->s.initial != 0 ? rp_fill_(zeros, rp_f64(g->s.initial)) : zeros);
        if (!m->state[j]) return rp_error_status();
    }
    return RP_OK;
}

static rp_status group_fill(group *g, kind_id k, rp_tensor *const *params, double lr) {
    rp_device device = g->n > 0 ? params[0]->device : rp_default_device();
    for (size_t i = 0; i < g->n; i++) {
        if (!rp__device_equal(params[i]->device, device))
            return rp__fail(RP_ERROR_DEVICE,
                            "optimizer: the parameters of a group must be on one device; use a group for each");
        g->members[i].param = rp_retain(params[i]);
    }
    RP_TRY(rp_set_default_device(device));
    g->lr = own(rp_full(RP_NO_DIMS, rp_f64(lr)));
    g->steps = own(rp_zeros(RP_DIMS((int64_t)g->n)));
    if (k == NADAM) g->extras = own(rp_ones(RP_DIMS((int64_t)g->n)));
    if (!g->lr || !g->steps || (k == NADAM && !g->extras)) return rp_error_status();
    for (size_t i = 0; i < g->n; i++) RP_TRY(member_fill(g, k, i));
    return RP_OK;
}

static rp_status lr_check(double lr) {
    if (lr >= 0) return RP_OK;
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "optimizer: learning rate %g is not 0 or larger", lr);
}

static rp_status params_check(const rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr) {
    RP_TRY(lr_check(lr));
    if (n == 0) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "optimizer: the list of parameters is empty");
    if (!params) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "optimizer: params is NULL");
    for (size_t i = 0; i < n; i++) {
        RP_TRY(rp__tensor_check(params[i], "parameter"));
        if (!rp_is_leaf(params[i]))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "optimizer: parameter %zu is a result of an op, not a leaf", i);
        if (!rp__dtype_is_float((rp_dtype)params[i]->dtype))
            return rp__fail(RP_ERROR_DTYPE, "optimizer: parameter %zu is %s, not of a floating type", i,
                            rp_dtype_name((rp_dtype)params[i]->dtype));
        for (size_t j = 0; j < i; j++)
            if (params[i] == params[j])
                return rp__fail(RP_ERROR_INVALID_ARGUMENT, "optimizer: parameters %zu and %zu are the same", j, i);
        for (size_t k = 0; k < opt->n; k++)
            for (size_t j = 0; j < opt->groups[k]->n; j++)
                if (params[i] == opt->groups[k]->members[j].param)
                    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "optimizer: parameter %zu is in group %zu already", i,
                                    k);
    }
    return RP_OK;
}

static uint64_t classes_id(void) {
    static _Atomic uint64_t last;
    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

static rp_status group_add(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr, const settings *s) {
    if (opt == &failed_optimizer) return rp__fail(RP_ERROR_STATE, "optimizer: it could not be made");
    RP_TRY(rp__handle_check(opt, RP__HANDLE_OPTIMIZER, "optimizer"));
    const rp__update_rule *rule = rule_of(opt->kind);
    const char *wrong = rule->check(s->numbers, s->flags);
    if (wrong) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: %s", kinds[opt->kind].name, wrong);
    RP_TRY(params_check(opt, params, n, lr));
    if (!RP__GROW(&opt->groups, &opt->capacity, opt->n + 1)) return RP__OOM("optimizer");
    group *g = rp__calloc(1, sizeof *g);
    if (!g) return RP__OOM("optimizer");
    g->n = n;
    g->s = *s;
    g->base = lr;
    g->members = rp__calloc(n > 0 ? n : 1, sizeof *g->members);
    g->lists = rp__calloc((RP__UPDATE_LISTS + 1) * n, sizeof *g->lists);
    if (!g->members || !g->lists) {
        group_free(g);
        return RP__OOM("optimizer");
    }
    rp_device device = rp_default_device();
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? group_fill(g, opt->kind, params, lr) : rp_error_status();
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    rp_status restored = rp_set_default_device(device);
    if (status == RP_OK) status = restored;
    if (status != RP_OK) {
        group_free(g);
        return status;
    }
    opt->groups[opt->n++] = g;
    opt->classes = classes_id(); /* recorded steps know nothing of it */
    return RP_OK;
}

/* ---------------------------------------------------------------- options

   An _add_group function of each kind reads its options; the constructors make an empty optimizer and add the first
   group. */

static uint32_t flag_if(bool condition, uint32_t flag) { return condition ? flag : 0; }

/* What nearly every kind has. */
static uint32_t usual_flags(double decay, bool maximize) {
    return flag_if(decay != 0, RP__UPDATE_DECAY) | flag_if(maximize, RP__UPDATE_MAXIMIZE);
}

#define NUMBERS(...) .numbers = {__VA_ARGS__}, .n_numbers = sizeof((double[]){__VA_ARGS__}) / sizeof(double)

static rp_status read_sgd(kind_id k, const rp_sgd_options *options, settings *s) {
    rp_sgd_options o;
    (void)k;
    RP_TRY(rp__options_read("sgd", options, sizeof o, &o));
    *s = (settings){NUMBERS(o.momentum, o.dampening, o.weight_decay),
                    .flags = usual_flags(o.weight_decay, o.maximize) | flag_if(o.momentum != 0, RP__UPDATE_MOMENTUM) |
                             flag_if(o.momentum != 0 && o.dampening != 0, RP__UPDATE_DAMPENED) |
                             flag_if(o.nesterov, RP__UPDATE_NESTEROV)};
    return RP_OK;
}

static rp_status read_adam(kind_id k, const rp_adam_options *options, settings *s) {
    rp_adam_options o;
    RP_TRY(rp__options_read("adam", options, sizeof o, &o));
    const double decay = rp__option_or(o.weight_decay, k == ADAMW ? 0.01 : 0.0);
    *s = (settings){
        NUMBERS(rp__option_or(o.beta1, 0.9), rp__option_or(o.beta2, 0.999), rp__option_or(o.eps, 1e-8), decay),
        .flags = usual_flags(decay, o.maximize) | flag_if(k == ADAMW, RP__UPDATE_DECOUPLED) |
                 flag_if(o.amsgrad, RP__UPDATE_AMSGRAD)};
    return RP_OK;
}

static rp_status read_adamax(kind_id k, const rp_adamax_options *options, settings *s) {
    rp_adamax_options o;
    (void)k;
    RP_TRY(rp__options_read("adamax", options, sizeof o, &o));
    *s = (settings){
        NUMBERS(rp__option_or(o.beta1, 0.9), rp__option_or(o.beta2, 0.999), rp__option_or(o.eps, 1e-8), o.weight_decay),
        .flags = usual_flags(o.weight_decay, o.maximize)};
    return RP_OK;
}

static rp_status read_nadam(kind_id k, const rp_nadam_options *options, settings *s) {
    rp_nadam_options o;
    (void)k;
    RP_TRY(rp__options_read("nadam", options, sizeof o, &o));
    *s = (settings){NUMBERS(rp__option_or(o.beta1, 0.9), rp__option_or(o.beta2, 0.999), rp__option_or(o.eps, 1e-8),
                            o.weight_decay, rp__option_or(o.momentum_decay, 4e-3)),
                    .flags = usual_flags(o.weight_decay, o.maximize) |
                             flag_if(o.decoupled_weight_decay, RP__UPDATE_DECOUPLED)};
    return RP_OK;
}

static rp_status read_radam(kind_id k, const rp_radam_options *options, settings *s) {
    rp_radam_options o;
    (void)k;
    RP_TRY(rp__options_read("radam", options, sizeof o, &o));
    *s = (settings){
        NUMBERS(rp__option_or(o.beta1, 0.9), rp__option_or(o.beta2, 0.999), rp__option_or(o.eps, 1e-8), o.weight_decay),
        .flags = usual_flags(o.weight_decay, o.maximize) | flag_if(o.decoupled_weight_decay, RP__UPDATE_DECOUPLED)};
    return RP_OK;
}

static rp_status read_rmsprop(kind_id k, const rp_rmsprop_options *options, settings *s) {
    rp_rmsprop_options o;
    (void)k;
    RP_TRY(rp__options_read("rmsprop", options, sizeof o, &o));
    *s = (settings){NUMBERS(rp__option_or(o.alpha, 0.99), rp__option_or(o.eps, 1e-8), o.weight_decay, o.momentum),
                    .flags = usual_flags(o.weight_decay, o.maximize) | flag_if(o.momentum != 0, RP__UPDATE_MOMENTUM) |
                             flag_if(o.centered, RP__UPDATE_CENTERED)};
    return RP_OK;
}

static rp_status read_adagrad(kind_id k, const rp_adagrad_options *options, settings *s) {
    rp_adagrad_options o;
    (void)k;
    RP_TRY(rp__options_read("adagrad", options, sizeof o, &o));
    if (!(o.initial_accumulator_value >= 0))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "adagrad: Invalid initial_accumulator_value value");
    *s = (settings){NUMBERS(o.lr_decay, o.weight_decay, rp__option_or(o.eps, 1e-10)),
                    .flags = usual_flags(o.weight_decay, o.maximize), .initial = o.initial_accumulator_value};
    return RP_OK;
}

static rp_status read_adadelta(kind_id k, const rp_adadelta_options *options, settings *s) {
    rp_adadelta_options o;
    (void)k;
    RP_TRY(rp__options_read("adadelta", options, sizeof o, &o));
    *s = (settings){NUMBERS(rp__option_or(o.rho, 0.9), rp__option_or(o.eps, 1e-6), o.weight_decay),
                    .flags = usual_flags(o.weight_decay, o.maximize)};
    return RP_OK;
}

static rp_status read_lion(kind_id k, const rp_lion_options *options, settings *s) {
    rp_lion_options o;
    (void)k;
    RP_TRY(rp__options_read("lion", options, sizeof o, &o));
    *s = (settings){NUMBERS(rp__option_or(o.beta1, 0.9), rp__option_or(o.beta2, 0.99), o.weight_decay),
                    .flags = flag_if(o.weight_decay != 0, RP__UPDATE_DECAY | RP__UPDATE_DECOUPLED) |
                             flag_if(o.maximize, RP__UPDATE_MAXIMIZE)};
    return RP_OK;
}

static rp_status read_lamb(kind_id k, const rp_lamb_options *options, settings *s) {
    rp_lamb_options o;
    (void)k;
    RP_TRY(rp__options_read("lamb", options, sizeof o, &o));
    const double decay = rp__option_or(o.weight_decay, 0.01);
    *s = (settings){
        NUMBERS(rp__option_or(o.beta1, 0.9), rp__option_or(o.beta2, 0.999), rp__option_or(o.eps, 1e-6), decay),
        .flags = usual_flags(decay, o.maximize), .always_adapt = o.always_adapt, .trust_clip = o.trust_clip};
    return RP_OK;
}

static rp_optimizer *optimizer_new(kind_id k) {
    rp_optimizer *opt = rp__handle_new(RP__HANDLE_OPTIMIZER, sizeof *opt);
    if (!opt) {
        (void)RP__OOM("optimizer");
        return &failed_optimizer;
    }
    opt->kind = k;
    opt->id = opt->classes = classes_id();
    return opt;
}

static rp_status kind_check(const rp_optimizer *opt, kind_id first, kind_id last, const char *wanted) {
    if (opt && opt != &failed_optimizer) RP_TRY(rp__handle_check(opt, RP__HANDLE_OPTIMIZER, "add_group"));
    if (opt && opt != &failed_optimizer && (opt->kind == first || opt->kind == last)) return RP_OK;
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_%s_add_group: the optimizer is %s", wanted,
                    !opt                       ? "NULL"
                    : opt == &failed_optimizer ? "one that could not be made"
                                               : kinds[opt->kind].name);
}

/* rp_NAME_add_group, for the kinds FIRST_KIND to LAST_KIND. */
#define ADD_GROUP(NAME, FIRST_KIND, LAST_KIND)                                                                         \
    rp_status rp_##NAME##_add_group_at(const char *site, rp_optimizer *opt, rp_tensor *const *params, size_t n,        \
                                       double lr, const rp_##NAME##_options *options) {                                \
        RP__CALLED_FROM(site);                                                                                         \
        settings s;                                                                                                    \
        RP_TRY(kind_check(opt, FIRST_KIND, LAST_KIND, #NAME));                                                         \
        RP_TRY(read_##NAME(opt->kind, options, &s));                                                                   \
        return group_add(opt, params, n, lr, &s);                                                                      \
    }
/* rp_NAME and rp_NAME_module, with the options of OPTIONS. What failed is told by the sticky error; a module without
   parameters is told as an empty list. */
#define CONSTRUCTORS(NAME, KIND, OPTIONS)                                                                              \
    rp_optimizer *rp_##NAME##_at(const char *site, rp_tensor *const *params, size_t n, double lr,                      \
                                 const rp_##OPTIONS##_options *options) {                                              \
        RP__CALLED_FROM(site);                                                                                         \
        rp_optimizer *opt = optimizer_new(KIND);                                                                       \
        if (opt != &failed_optimizer) (void)rp_##OPTIONS##_add_group(opt, params, n, lr, options);                     \
        return opt;                                                                                                    \
    }                                                                                                                  \
    rp_optimizer *rp_##NAME##_module_at(const char *site, rp_module *m, double lr,                                     \
                                        const rp_##OPTIONS##_options *options) {                                       \
        RP__CALLED_FROM(site);                                                                                         \
        size_t n;                                                                                                      \
        rp_tensor *const *params = rp_module_parameters(m, &n);                                                        \
        return rp_##NAME(params, n, lr, options);                                                                      \
    }

ADD_GROUP(sgd, SGD, SGD)
ADD_GROUP(adam, ADAM, ADAMW)
ADD_GROUP(adamax, ADAMAX, ADAMAX)
ADD_GROUP(nadam, NADAM, NADAM)
ADD_GROUP(radam, RADAM, RADAM)
ADD_GROUP(rmsprop, RMSPROP, RMSPROP)
ADD_GROUP(adagrad, ADAGRAD, ADAGRAD)
ADD_GROUP(adadelta, ADADELTA, ADADELTA)
ADD_GROUP(lion, LION, LION)
ADD_GROUP(lamb, LAMB, LAMB)
CONSTRUCTORS(sgd, SGD, sgd)
CONSTRUCTORS(adam, ADAM, adam)
CONSTRUCTORS(adamw, ADAMW, adam)
CONSTRUCTORS(adamax, ADAMAX, adamax)
CONSTRUCTORS(nadam, NADAM, nadam)
CONSTRUCTORS(radam, RADAM, radam)
CONSTRUCTORS(rmsprop, RMSPROP, rmsprop)
CONSTRUCTORS(adagrad, ADAGRAD, adagrad)
CONSTRUCTORS(adadelta, ADADELTA, adadelta)
CONSTRUCTORS(lion, LION, lion)
CONSTRUCTORS(lamb, LAMB, lamb)

void rp_optimizer_release(rp_optimizer *opt) {
    if (!opt || opt == &failed_optimizer || !rp__handle_give_up(opt, RP__HANDLE_OPTIMIZER, "rp_optimizer_release"))
        return;
    for (size_t i = 0; i < opt->n; i++) group_free(opt->groups[i]);
    rp__free(opt->groups);
    rp__handle_free(opt);
}

/* ---------------------------------------------------------------- the step */

static rp_tensor *grad_of(const member *m) { return rp_grad_of(m->param); }

static rp_status counts_copy(const member *to, const member *from) {
    if (rp__tensor_is_error(rp_copy_(to->step, from->step))) return rp_error_status();
    return to->extra && rp__tensor_is_error(rp_copy_(to->extra, from->extra)) ? rp_error_status() : RP_OK;
}

/* Members that a step passes over while their leader is stepped (or the other way round) leave the class. */
static rp_status classes_split(rp_optimizer *opt, group *g) {
    for (size_t lead = 0; lead < g->n; lead++) {
        if (g->members[lead].leader != lead) continue;
        size_t fresh = g->n; /* leader of those that differ */
        for (size_t i = lead + 1; i < g->n; i++) {
            member *m = &g->members[i];
            if (m->leader != lead || !grad_of(m) == !grad_of(&g->members[lead])) continue;
            if (fresh == g->n) {
                fresh = i;
                opt->classes = classes_id();
                RP_TRY(counts_copy(m, &g->members[lead]));
            }
            m->leader = fresh;
        }
    }
    return RP_OK;
}

/* What stands for the momentum among the group's own numbers; the plain descent of LAMB has others. */
static rp_tensor *momentum_of(const group *g, const settings *s) { return s == &g->s ? g->momentum : NULL; }

/* A call of the rule `name` over members at `at` and after it in the lists; lists[k] is NULL where the rule has none.
   */
static rp_status part_step(const group *g, const rp__update_rule *rule, rp_tensor **const lists[RP__UPDATE_LISTS],
                           size_t at, size_t n, rp_tensor *step, rp_tensor *extra, rp_tensor *found_inf,
                           const settings *s) {
    rp_tensor **of[RP__UPDATE_LISTS];
    size_t count[RP__UPDATE_LISTS];
    for (int k = 0; k < RP__UPDATE_LISTS; k++) {
        of[k] = lists[k] ? lists[k] + at : NULL;
        count[k] = lists[k] ? n : 0;
    }
    return rp_foreach_update_(rule->name, of[0], count[0], of[1], count[1], of[2], count[2], of[3], count[3], of[4],
                              count[4], step, g->lr, extra, rule->cycles ? momentum_of(g, s) : NULL, found_inf,
                              s->numbers, s->n_numbers, s->flags);
}

/* In as few calls as operands allow. */
static rp_status update(const group *g, const char *name, rp_tensor **const lists[RP__UPDATE_LISTS], size_t n,
                        rp_tensor *step, rp_tensor *extra, rp_tensor *found_inf, const settings *s) {
    const rp__update_rule *rule = rp__update_rule_find(name);
    size_t width = 0;
    for (int k = 0; k < RP__UPDATE_LISTS; k++) width += lists[k] != NULL;
    const size_t part = (RP__MAX_IN - 5) / width; /* behind five 0-d tensors */
    for (size_t at = 0; at < n; at += part)
        RP_TRY(part_step(g, rule, lists, at, n - at < part ? n - at : part, step, extra, found_inf, s));
    return RP_OK;
}

/* The norm, in float32 at least. */
static rp_tensor *norm_of(rp_tensor *t) {
    const rp_dtype type = t->dtype == RP_F64 ? RP_F64 : RP_F32;
    return rp_linalg_vector_norm(t, rp_i64(2), RP_NO_DIMS, false,
                                 RP_OPTIONS(rp_linalg_vector_norm_options, .dtype = type));
}

/* |parameter| / |update|, 1 where either is 0. */
static rp_tensor *trust(const settings *s, rp_tensor *param, rp_tensor *change) {
    rp_tensor *of_param = norm_of(param), *of_change = norm_of(change);
    rp_tensor *both = rp_logical_and(rp_gt_scalar(of_param, rp_i64(0)), rp_gt_scalar(of_change, rp_i64(0)));
    rp_tensor *ratio = rp_where(both, rp_div(of_param, of_change), rp_ones_like(of_param));
    return s->trust_clip ? rp_minimum(ratio, rp_ones_like(ratio)) : ratio;
}

/* The updates, in one launch; their norms; the descent. */
static rp_status lamb_step(const group *g, rp_tensor **lists, size_t n, rp_tensor *step, rp_tensor *found_inf) {
    rp_tensor **params = lists, **grads = params + g->n, **first = grads + g->n, **second = first + g->n,
              **changes = second + g->n, **ratios = changes + g->n;
    static const settings none;
    rp_tensor **const moments[] = {changes, grads, first, second, params};
    RP_TRY(update(g, "lamb", moments, n, step, NULL, found_inf, &g->s));
    if (!(g->s.flags & RP__UPDATE_DECAY) && !g->s.always_adapt) {
        static const settings plain = {.n_numbers = 3};
        rp_tensor **const descent[] = {params, changes, NULL, NULL, NULL};
        return update(g, "sgd", descent, n, step, NULL, found_inf, &plain);
    }
    for (size_t i = 0; i < n; i++) {
        ratios[i] = trust(&g->s, params[i], changes[i]);
        if (rp__tensor_is_error(ratios[i])) return rp_error_status();
    }
    rp_tensor **const descent[] = {params, changes, ratios, NULL, NULL};
    return update(g, "descend", descent, n, NULL, NULL, found_inf, &none);
}

/* One more step, and what depends on the count alone. */
static rp_status advance(const rp_optimizer *opt, const group *g, const member *m, rp_tensor *found_inf) {
    if (rp__tensor_is_error(rp_add_scalar_(m->step, rp_i64(1)))) return rp_error_status();
    if (found_inf && rp__tensor_is_error(rp_sub_(m->step, found_inf))) return rp_error_status();
    if (opt->kind != NADAM) return RP_OK;
    /* mu_product *= beta1 (1 - 0.96^(step momentum_decay) / 2) */
    rp_tensor *power = rp_exp(rp_mul_scalar(m->step, rp_f64(g->s.numbers[4] * log(0.96))));
    rp_tensor *mu = rp_add_scalar(rp_mul_scalar(power, rp_f64(-0.5)), rp_i64(1));
    mu = g->momentum ? rp_mul(mu, g->momentum) : rp_mul_scalar(mu, rp_f64(g->s.numbers[0]));
    if (found_inf) mu = rp_where(rp_ne_scalar(found_inf, rp_i64(0)), rp_ones_like(mu), mu);
    return rp__tensor_is_error(rp_mul_(m->extra, mu)) ? rp_error_status() : RP_OK;
}

static rp_status class_step(const rp_optimizer *opt, group *g, size_t lead, rp_tensor *found_inf) {
    rp_tensor **lists[RP__UPDATE_LISTS];
    for (int k = 0; k < RP__UPDATE_LISTS; k++) lists[k] = g->lists + (size_t)k * g->n;
    size_t n = 0;
    for (size_t i = lead; i < g->n; i++) {
        const member *m = &g->members[i];
        if (m->leader != lead) continue;
        lists[0][n] = m->param;
        lists[1][n] = grad_of(m);
        for (int k = 0; k < STATES; k++) lists[2 + k][n] = m->state[k];
        n++;
    }
    const member *leader = &g->members[lead];
    RP_TRY(advance(opt, g, leader, found_inf));
    if (opt->kind == LAMB) return lamb_step(g, g->lists, n, leader->step, found_inf);
    for (int k = 0; k < STATES; k++)
        if (!leader->state[k]) lists[2 + k] = NULL;
    return update(g, kinds[opt->kind].rule, lists, n, leader->step, leader->extra, found_inf, &g->s);
}

static rp_status optimizer_check(const rp_optimizer *opt, const char *function) {
    if (opt && opt != &failed_optimizer) RP_TRY(rp__handle_check(opt, RP__HANDLE_OPTIMIZER, function));
    if (opt && opt->n > 0) return RP_OK;
    return rp__fail(RP_ERROR_STATE, "%s: the optimizer is NULL or could not be made", function);
}

uint64_t rp__optimizer_id(const rp_optimizer *opt) { return rp__handle_is(opt, RP__HANDLE_OPTIMIZER) ? opt->id : 0; }

rp_status rp__optimizer_guard(const rp_optimizer *opt) {
    RP_TRY(optimizer_check(opt, "optimizer"));
    return rp_guard_bytes(&opt->classes, sizeof opt->classes);
}

rp_status rp__optimizer_step(rp_optimizer *opt, rp_tensor *found_inf) {
    RP_TRY(optimizer_check(opt, "rp_optimizer_step"));
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    /* As they are before a split, whose copy of a count is for this step alone. */
    rp_status status = scope.id ? rp__optimizer_guard(opt) : rp_error_status();
    for (size_t k = 0; k < opt->n && status == RP_OK; k++) {
        group *g = opt->groups[k];
        status = classes_split(opt, g);
        for (size_t i = 0; i < g->n && status == RP_OK; i++)
            if (g->members[i].leader == i && grad_of(&g->members[i])) status = class_step(opt, g, i, found_inf);
    }
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

rp_status rp_optimizer_step_at(const char *site, rp_optimizer *opt) {
    RP__CALLED_FROM(site);
    rp__site_frame frame = rp__site_push(site, "optimizer_step");
    rp_status status = rp__optimizer_step(opt, NULL);
    rp__site_pop(frame);
    return status;
}

rp_status rp_optimizer_zero_grad_at(const char *site, rp_optimizer *opt, bool set_to_none) {
    RP__CALLED_FROM(site);
    RP_TRY(optimizer_check(opt, "rp_optimizer_zero_grad"));
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? rp__optimizer_guard(opt) : rp_error_status();
    for (size_t k = 0; k < opt->n && status == RP_OK; k++)
        for (size_t i = 0; i < opt->groups[k]->n && status == RP_OK; i++) {
            rp_tensor *param = opt->groups[k]->members[i].param, *grad = rp_grad_of(param);
            if (!grad) continue;
            if (set_to_none)
                status = rp_set_grad(param, NULL);
            else if (rp__tensor_is_error(rp_fill_(grad, rp_i64(0))))
                status = rp_error_status();
        }
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

/* ---------------------------------------------------------------- schedules */

/* The number of which it is the momentum, or beta1. */
static double own_momentum(const group *g, kind_id k) { return g->s.numbers[k == RMSPROP ? 3 : 0]; }

static rp_status rate_write(group *g, kind_id k) {
    rp_tensor *rate = rp__schedule_rate(g->schedule, rp_to_dtype(g->schedule_step, RP_F64), g->base);
    if (rp__tensor_is_error(rp_copy_(g->lr, rate))) return rp_error_status();
    if (!g->momentum) return RP_OK;
    rp_tensor *momentum = rp__schedule_momentum(g->schedule, rp_to_dtype(g->schedule_step, RP_F64), own_momentum(g, k));
    return rp__tensor_is_error(rp_copy_(g->momentum, momentum)) ? rp_error_status() : RP_OK;
}

static rp_status schedule_begin(group *g, kind_id k, const rp_schedule *s) {
    rp_device device = rp_default_device();
    const bool cycles = rp__schedule_cycles(s);
    if (cycles && (kinds[k].cycles & ~g->s.flags))
        return rp__fail(
            RP_ERROR_INVALID_ARGUMENT,
            "rp_optimizer_set_schedule: the schedule cycles a momentum, which this %s has not (keep_momentum)",
            kinds[k].name);
    RP_TRY(rp_set_default_device(g->lr->device));
    rp_tensor *step = own(rp_zeros(RP_NO_DIMS, RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)));
    rp_tensor *momentum =
        step && cycles ? own(rp_zeros(RP_NO_DIMS, RP_OPTIONS(rp_zeros_options, .dtype = RP_F64))) : NULL;
    rp__schedule *copy = step && (momentum || !cycles) ? rp__schedule_copy(s) : NULL;
    RP_TRY(rp_set_default_device(device));
    if (!copy) {
        release(step);
        release(momentum);
        return rp_error_status();
    }
    g->schedule = copy;
    g->schedule_step = step;
    g->momentum = momentum;
    return rate_write(g, k);
}

static void schedule_end(group *g) {
    rp__schedule_free(g->schedule);
    release(g->schedule_step);
    release(g->momentum);
    g->schedule = NULL;
    g->schedule_step = g->momentum = NULL;
}

rp_status rp_optimizer_set_schedule_at(const char *site, rp_optimizer *opt, const rp_schedule *s) {
    RP__CALLED_FROM(site);
    RP_TRY(optimizer_check(opt, "rp_optimizer_set_schedule"));
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? RP_OK : rp_error_status();
    opt->classes = classes_id(); /* recorded steps have the old one in them */
    for (size_t k = 0; k < opt->n && status == RP_OK; k++) {
        schedule_end(opt->groups[k]);
        if (s) status = schedule_begin(opt->groups[k], opt->kind, s);
    }
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

rp_status rp_optimizer_schedule_step_at(const char *site, rp_optimizer *opt) {
    RP__CALLED_FROM(site);
    RP_TRY(optimizer_check(opt, "rp_optimizer_schedule_step"));
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? rp__optimizer_guard(opt) : rp_error_status();
    bool any = false;
    for (size_t k = 0; k < opt->n && status == RP_OK; k++) {
        group *g = opt->groups[k];
        if (!g->schedule) continue;
        any = true;
        if (rp__tensor_is_error(rp_add_scalar_(g->schedule_step, rp_i64(1))))
            status = rp_error_status();
        else
            status = rate_write(g, opt->kind);
    }
    if (!any && status == RP_OK)
        status = rp__fail(RP_ERROR_STATE, "rp_optimizer_schedule_step: the optimizer has no schedule");
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

/* ---------------------------------------------------------------- what a program reads and sets */

size_t rp_optimizer_group_count(const rp_optimizer *opt) {
    return rp__handle_is(opt, RP__HANDLE_OPTIMIZER) ? opt->n : 0;
}

static group *group_at(const rp_optimizer *opt, size_t index, const char *function) {
    if (opt && opt != &failed_optimizer && rp__handle_check(opt, RP__HANDLE_OPTIMIZER, function) != RP_OK) return NULL;
    if (opt && index < opt->n) return opt->groups[index];
    (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: there is no group %zu", function, index);
    return NULL;
}

size_t rp_optimizer_param_count_at(const char *site, const rp_optimizer *opt, size_t index) {
    RP__CALLED_FROM(site);
    const group *g = group_at(opt, index, "rp_optimizer_param_count");
    return g ? g->n : 0;
}

rp_status rp_optimizer_set_lr_at(const char *site, rp_optimizer *opt, size_t index, double lr) {
    RP__CALLED_FROM(site);
    group *g = group_at(opt, index, "rp_optimizer_set_lr");
    if (!g) return rp_error_status();
    RP_TRY(lr_check(lr));
    if (!g->schedule) g->base = lr;
    return rp_init_constant(g->lr, lr);
}

rp_tensor *rp_optimizer_lr_at(const char *site, rp_optimizer *opt, size_t index) {
    RP__CALLED_FROM(site);
    group *g = group_at(opt, index, "rp_optimizer_lr");
    return g ? g->lr : NULL;
}

rp_tensor *rp_optimizer_momentum_at(const char *site, rp_optimizer *opt, size_t index) {
    RP__CALLED_FROM(site);
    group *g = group_at(opt, index, "rp_optimizer_momentum");
    return g ? g->momentum : NULL;
}

static rp_tensor *kept(const rp_optimizer *opt, const group *g, size_t param, const char *name) {
    if (param >= g->n || !name) return NULL;
    const member *m = &g->members[param], *leader = &g->members[m->leader];
    if (strcmp(name, "step") == 0) return leader->step;
    if (strcmp(name, "mu_product") == 0) return leader->extra;
    for (int k = 0; k < STATES; k++)
        if (kinds[opt->kind].states[k] && strcmp(name, kinds[opt->kind].states[k]) == 0) return m->state[k];
    return NULL;
}

rp_tensor *rp_optimizer_state_at(const char *site, rp_optimizer *opt, size_t index, size_t param, const char *name) {
    RP__CALLED_FROM(site);
    group *g = group_at(opt, index, "rp_optimizer_state");
    if (!g) return NULL;
    rp_tensor *t = kept(opt, g, param, name);
    if (!t)
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_optimizer_state: group %zu has no state `%s` for parameter %zu",
                       index, name ? name : "NULL", param);
    return t;
}

/* ---------------------------------------------------------------- saving and loading */

const char *rp__optimizer_kind(const rp_optimizer *opt) {
    return optimizer_check(opt, "optimizer") == RP_OK ? kinds[opt->kind].name : NULL;
}

rp_tensor *rp__optimizer_state(rp_optimizer *opt, size_t index, size_t param, size_t k, const char **name) {
    const member *m = &opt->groups[index]->members[param];
    for (size_t at = 0; at < STATES; at++) {
        if (!m->state[at] || !kinds[opt->kind].states[at]) continue;
        *name = kinds[opt->kind].states[at];
        if (k-- == 0) return m->state[at];
    }
    *name = "mu_product";
    return k == 0 ? m->extra : NULL;
}

rp_tensor *rp__optimizer_schedule_step(const rp_optimizer *opt, size_t index) {
    return opt->groups[index]->schedule_step;
}

rp_tensor *rp__optimizer_momentum(const rp_optimizer *opt, size_t index) { return opt->groups[index]->momentum; }

rp_tensor *rp__optimizer_param(const rp_optimizer *opt, size_t index, size_t param) {
    return opt->groups[index]->members[param].param;
}

rp_status rp__optimizer_counts(rp_optimizer *opt, size_t index, float *counts) {
    const group *g = opt->groups[index];
    for (size_t i = 0; i < g->n; i++) {
        const member *m = &g->members[i];
        if (m->leader != i) {
            counts[i] = counts[m->leader];
            RP_TRY(counts_copy(m, &g->members[m->leader])); /* so that each has its own */
        } else
            RP_TRY(rp_to_host(m->step, &counts[i], sizeof *counts));
    }
    return RP_OK;
}

rp_status rp__optimizer_set_counts(rp_optimizer *opt, size_t index, const float *counts) {
    group *g = opt->groups[index];
    bool parted = false;
    for (size_t lead = 0; lead < g->n; lead++) {
        for (size_t fresh = 0; g->members[lead].leader == lead && fresh < g->n;) {
            fresh = g->n; /* leader of those with another count, one count a round */
            for (size_t i = lead + 1; i < g->n; i++) {
                if (g->members[i].leader != lead || counts[i] == counts[lead]) continue;
                if (fresh == g->n) fresh = i;
                if (counts[i] == counts[fresh]) g->members[i].leader = fresh;
                parted = true;
            }
        }
    }
    if (parted) opt->classes = classes_id();
    for (size_t i = 0; i < g->n; i++)
        if (g->members[i].leader == i) RP_TRY(rp_init_constant(g->members[i].step, counts[i]));
    return RP_OK;
}
