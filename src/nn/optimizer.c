/* Optimizers: groups of parameters with their state, and the step that updates them with one op a set of parameters.

   Step counts. PyTorch counts for every parameter, and passes over those without a gradient; one launch has one count. The
   parameters of a group therefore form classes: two are in one class as long as they were always stepped together. Classes
   only ever split. Every parameter has a 0-d count of its own (a view of one vector); a class uses that of its first member,
   and a new class starts from a copy. Nothing is allocated after construction, and which op runs on which memory depends on
   the set of parameters with a gradient and on the classes: that is what a trace guards. A class with more members than a call
   of an op has operands takes several calls. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "core/alloc.h"
#include "core/options.h"
#include "nn/optimizer.h"
#include "ops/ops.h"

#include <string.h>

typedef enum kind { ADAM, ADAMW, SGD } kind;

typedef struct settings {
    double beta1, beta2, eps, weight_decay, momentum, dampening;
    bool nesterov, maximize;
} settings;

typedef struct member {
    rp_tensor *param;
    rp_tensor *first, *second; /* exp_avg and exp_avg_sq, or momentum_buffer; NULL: not kept */
    rp_tensor *step;           /* 0-d f32; holds the count if the member leads its class */
    size_t leader;             /* first member of its class */
} member;

typedef struct group {
    settings s;
    rp_tensor *lr, *steps; /* 0-d f32; (n) f32 */
    member *members;
    size_t n;
    rp_tensor **lists; /* room for the arguments of a step: 4 n */
} group;

struct rp_optimizer {
    rp__handle handle;
    kind kind;
    group **groups;
    size_t n, capacity;
    uint64_t
        classes; /* another number whenever a class was split; compiled steps compare it, in memory that outlives us */
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
        release(m->first);
        release(m->second);
        release(m->step);
    }
    release(g->lr);
    release(g->steps);
    rp__free(g->members);
    rp__free(g->lists);
    rp__free(g);
}

/* Takes a result out of the scope's hands; NULL for the error tensor. */
static rp_tensor *own(rp_tensor *t) { return rp__tensor_is_error(t) ? NULL : rp_retain(t); }

static rp_status group_fill(group *g, kind k, rp_tensor *const *params, double lr) {
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
    if (!g->lr || !g->steps) return rp_error_status();
    for (size_t i = 0; i < g->n; i++) {
        member *m = &g->members[i];
        m->leader = 0;
        m->step = own(rp_select(g->steps, 0, (int64_t)i));
        if (!m->step) return rp_error_status();
        if (k == SGD && g->s.momentum == 0) continue;
        m->first = own(rp_zeros_like(m->param));
        if (k != SGD) m->second = m->first ? own(rp_zeros_like(m->param)) : NULL;
        if (!m->first || (k != SGD && !m->second)) return rp_error_status();
    }
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

static rp_status group_add(rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr, const settings *s) {
    if (opt == &failed_optimizer) return rp__fail(RP_ERROR_STATE, "optimizer: it could not be made");
    if (!rp__handle_is_live(&opt->handle)) return rp__handle_refuse(&opt->handle, "optimizer", "optimizer");
    RP_TRY(params_check(opt, params, n, lr));
    if (!RP__GROW(&opt->groups, &opt->capacity, opt->n + 1)) return RP__OOM("optimizer");
    group *g = rp__calloc(1, sizeof *g);
    if (!g) return RP__OOM("optimizer");
    g->n = n;
    g->s = *s;
    g->members = rp__calloc(n > 0 ? n : 1, sizeof *g->members);
    g->lists = rp__calloc(n > 0 ? 4 * n : 1, sizeof *g->lists);
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
    return RP_OK;
}

static rp_status adam_settings(kind k, const rp_adam_options *options, settings *s) {
    rp_adam_options o;
    RP_TRY(rp__options_read("adam", options, sizeof o, &o));
    *s = (settings){.beta1 = rp__option_or(o.beta1, 0.9),
                    .beta2 = rp__option_or(o.beta2, 0.999),
                    .eps = rp__option_or(o.eps, 1e-8),
                    .weight_decay = rp__option_or(o.weight_decay, k == ADAMW ? 0.01 : 0.0),
                    .maximize = o.maximize};
    if (!(s->beta1 < 1) || !(s->beta2 < 1))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "adam: betas must be below 1, not %g and %g", s->beta1, s->beta2);
    return RP_OK;
}

static rp_status sgd_settings(const rp_sgd_options *options, settings *s) {
    rp_sgd_options o;
    RP_TRY(rp__options_read("sgd", options, sizeof o, &o));
    *s = (settings){.momentum = o.momentum,
                    .dampening = o.dampening,
                    .weight_decay = o.weight_decay,
                    .nesterov = o.nesterov,
                    .maximize = o.maximize};
    if (!(o.momentum >= 0) || !(o.weight_decay >= 0))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "sgd: momentum %g and weight_decay %g must not be negative",
                        o.momentum, o.weight_decay);
    if (o.nesterov && (o.momentum == 0 || o.dampening != 0))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "sgd: nesterov needs a momentum and no dampening");
    return RP_OK;
}

static uint64_t classes_id(void) {
    static _Atomic uint64_t last;
    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

static rp_optimizer *optimizer_new(kind k) {
    rp_optimizer *opt = rp__handle_new("optimizer", sizeof *opt);
    if (!opt) {
        (void)RP__OOM("optimizer");
        return &failed_optimizer;
    }
    opt->kind = k;
    opt->classes = classes_id();
    return opt;
}

static rp_optimizer *adam_new(kind k, rp_tensor *const *params, size_t n, double lr, const rp_adam_options *options) {
    rp_optimizer *opt = optimizer_new(k);
    if (opt != &failed_optimizer)
        (void)rp_adam_add_group(opt, params, n, lr, options); /* the sticky error says what failed */
    return opt;
}

rp_optimizer *rp_adam_at(const char *site, rp_tensor *const *params, size_t n, double lr,
                         const rp_adam_options *options) {
    RP__CALLED_FROM(site);
    return adam_new(ADAM, params, n, lr, options);
}

rp_optimizer *rp_adamw_at(const char *site, rp_tensor *const *params, size_t n, double lr,
                          const rp_adam_options *options) {
    RP__CALLED_FROM(site);
    return adam_new(ADAMW, params, n, lr, options);
}

rp_optimizer *rp_sgd_at(const char *site, rp_tensor *const *params, size_t n, double lr,
                        const rp_sgd_options *options) {
    RP__CALLED_FROM(site);
    rp_optimizer *opt = optimizer_new(SGD);
    if (opt != &failed_optimizer) (void)rp_sgd_add_group(opt, params, n, lr, options);
    return opt;
}

/* A module that has none is told as an empty list. */
rp_optimizer *rp_adam_module_at(const char *site, rp_module *m, double lr, const rp_adam_options *options) {
    RP__CALLED_FROM(site);
    size_t n;
    rp_tensor *const *params = rp_module_parameters(m, &n);
    return adam_new(ADAM, params, n, lr, options);
}

rp_optimizer *rp_adamw_module_at(const char *site, rp_module *m, double lr, const rp_adam_options *options) {
    RP__CALLED_FROM(site);
    size_t n;
    rp_tensor *const *params = rp_module_parameters(m, &n);
    return adam_new(ADAMW, params, n, lr, options);
}

rp_optimizer *rp_sgd_module_at(const char *site, rp_module *m, double lr, const rp_sgd_options *options) {
    RP__CALLED_FROM(site);
    size_t n;
    rp_tensor *const *params = rp_module_parameters(m, &n);
    return rp_sgd(params, n, lr, options);
}

rp_status rp_adam_add_group_at(const char *site, rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                               const rp_adam_options *options) {
    RP__CALLED_FROM(site);
    settings s;
    if (!opt || opt->kind == SGD)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_adam_add_group: not an Adam optimizer");
    RP_TRY(adam_settings(opt->kind, options, &s));
    return group_add(opt, params, n, lr, &s);
}

rp_status rp_sgd_add_group_at(const char *site, rp_optimizer *opt, rp_tensor *const *params, size_t n, double lr,
                              const rp_sgd_options *options) {
    RP__CALLED_FROM(site);
    settings s;
    if (opt && opt != &failed_optimizer && !rp__handle_is_live(&opt->handle))
        return rp__handle_refuse(&opt->handle, "rp_sgd_add_group", "optimizer");
    if (!opt || opt->kind != SGD) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_sgd_add_group: not an SGD optimizer");
    RP_TRY(sgd_settings(options, &s));
    return group_add(opt, params, n, lr, &s);
}

void rp_optimizer_release(rp_optimizer *opt) {
    if (!opt || opt == &failed_optimizer || !rp__handle_give_up(&opt->handle, "rp_optimizer_release")) return;
    for (size_t i = 0; i < opt->n; i++) group_free(opt->groups[i]);
    rp__free(opt->groups);
    rp__handle_free(opt);
}

/* ---------------------------------------------------------------- the step */

static rp_tensor *grad_of(const member *m) { return rp_grad_of(m->param); }

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
                if (rp__tensor_is_error(rp_copy_(m->step, g->members[lead].step))) return rp_error_status();
            }
            m->leader = fresh;
        }
    }
    return RP_OK;
}

/* Members at `at` and after it in the lists, as many as one call of the op takes. */
static rp_status part_step(const rp_optimizer *opt, const group *g, rp_tensor *step, size_t at, size_t n) {
    const settings *s = &g->s;
    rp_tensor **params = g->lists + at, **grads = params + g->n, **first = grads + g->n, **second = first + g->n;
    if (opt->kind == SGD)
        return rp_sgd_step_(params, n, grads, n, first, s->momentum != 0 ? n : 0, step, g->lr, s->momentum,
                            s->dampening, s->weight_decay, s->nesterov, s->maximize);
    return rp_adam_step_(params, n, grads, n, first, n, second, n, step, g->lr, s->beta1, s->beta2, s->eps,
                         s->weight_decay, opt->kind == ADAMW, s->maximize);
}

/* Four lists and two numbers are the operands of a call. */
enum { PART = (RP__MAX_IN - 2) / 4 };

static rp_status class_step(const rp_optimizer *opt, group *g, size_t lead) {
    rp_tensor **params = g->lists, **grads = params + g->n, **first = grads + g->n, **second = first + g->n;
    size_t n = 0;
    for (size_t i = lead; i < g->n; i++) {
        member *m = &g->members[i];
        if (m->leader != lead) continue;
        params[n] = m->param;
        grads[n] = grad_of(m);
        first[n] = m->first;
        second[n++] = m->second;
    }
    rp_tensor *step = g->members[lead].step;
    if (rp__tensor_is_error(rp_add_scalar_(step, rp_i64(1)))) return rp_error_status();
    for (size_t at = 0; at < n; at += PART) RP_TRY(part_step(opt, g, step, at, n - at < PART ? n - at : PART));
    return RP_OK;
}

static rp_status optimizer_check(const rp_optimizer *opt, const char *function) {
    if (opt && opt->n > 0) return RP_OK;
    if (opt && opt != &failed_optimizer && !rp__handle_is_live(&opt->handle))
        return rp__handle_refuse(&opt->handle, function, "optimizer");
    return rp__fail(RP_ERROR_STATE, "%s: the optimizer is NULL or could not be made", function);
}

rp_status rp_optimizer_step_at(const char *site, rp_optimizer *opt) {
    RP__CALLED_FROM(site);
    RP_TRY(optimizer_check(opt, "rp_optimizer_step"));
    rp__site_frame frame = rp__site_push(site, "optimizer_step");
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    /* As they are before a split, whose copy of a count is for this step alone. */
    rp_status status = scope.id ? rp_guard_bytes(&opt->classes, sizeof opt->classes) : rp_error_status();
    for (size_t k = 0; k < opt->n && status == RP_OK; k++) {
        group *g = opt->groups[k];
        status = classes_split(opt, g);
        for (size_t i = 0; i < g->n && status == RP_OK; i++)
            if (g->members[i].leader == i && grad_of(&g->members[i])) status = class_step(opt, g, i);
    }
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    rp__site_pop(frame);
    return status;
}

rp_status rp_optimizer_zero_grad_at(const char *site, rp_optimizer *opt, bool set_to_none) {
    RP__CALLED_FROM(site);
    RP_TRY(optimizer_check(opt, "rp_optimizer_zero_grad"));
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? RP_OK : rp_error_status();
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

/* ---------------------------------------------------------------- what a program reads and sets */

size_t rp_optimizer_group_count(const rp_optimizer *opt) { return opt ? opt->n : 0; }

static group *group_at(const rp_optimizer *opt, size_t index, const char *function) {
    if (opt && index < opt->n) return opt->groups[index];
    if (opt && opt != &failed_optimizer && !rp__handle_is_live(&opt->handle)) {
        (void)rp__handle_refuse(&opt->handle, function, "optimizer");
        return NULL;
    }
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
    if (g) RP_TRY(lr_check(lr));
    return g ? rp_init_constant(g->lr, lr) : rp_error_status();
}

rp_tensor *rp_optimizer_lr_at(const char *site, rp_optimizer *opt, size_t index) {
    RP__CALLED_FROM(site);
    group *g = group_at(opt, index, "rp_optimizer_lr");
    return g ? g->lr : NULL;
}

static rp_tensor *kept(const rp_optimizer *opt, const group *g, size_t param, const char *name) {
    if (param >= g->n || !name) return NULL;
    const member *m = &g->members[param];
    if (strcmp(name, "step") == 0) return g->members[m->leader].step;
    if (strcmp(name, opt->kind == SGD ? "momentum_buffer" : "exp_avg") == 0) return m->first;
    return strcmp(name, "exp_avg_sq") == 0 ? m->second : NULL;
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
    static const char *const names[] = {[ADAM] = "adam", [ADAMW] = "adamw", [SGD] = "sgd"};
    return optimizer_check(opt, "optimizer") == RP_OK ? names[opt->kind] : NULL;
}

rp_tensor *rp__optimizer_state(rp_optimizer *opt, size_t index, size_t param, const char *name) {
    return kept(opt, opt->groups[index], param, name);
}

rp_status rp__optimizer_counts(rp_optimizer *opt, size_t index, float *counts) {
    const group *g = opt->groups[index];
    for (size_t i = 0; i < g->n; i++) {
        const member *m = &g->members[i];
        if (m->leader != i)
            counts[i] = counts[m->leader];
        else
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
