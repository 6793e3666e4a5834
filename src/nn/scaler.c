/* Scaling of losses: the scale, and how many steps it has held, lie on the device; so does, for each optimizer, whether a gradient was
   not finite, which its kernels read. How far an optimizer is in a step is a word on the host, which a trace takes as a guard and
   as an effect: so the parts of a step may be in any functions, compiled or not. */
#include "ops/private.h"
#include <reprise_nn.h>

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/handle.h"
#include "core/options.h"
#include "device/device.h"
#include "nn/optimizer.h"
#include "nn/update.h"
#include "ops/ops.h"
#include "trace/trace.h"

enum { READY, UNSCALED, STEPPED, PHASES = 4 };

typedef struct
    stage { /* of an optimizer, from its first step on; compiled steps compare its words in memory that outlives it */
    rp__handle handle;
    const rp_optimizer *opt;
    uint64_t of;      /* rp__optimizer_id of opt */
    uint64_t phase;   /* PHASES times a number that no other stage has, and the phase since the last update */
    rp_tensor *found; /* 0-d f32: 1 if a gradient was not finite; retained */
    struct stage *next;
} stage;

struct rp_grad_scaler {
    rp__handle handle;
    uint64_t id, stages_id; /* that no other scaler has; that no other scaler, nor this one with other stages, has */
    rp_tensor *scale, *tracker; /* 0-d f32, i32; retained */
    double growth, backoff;
    int64_t interval;
    stage *stages;
};

static rp_grad_scaler failed_scaler; /* returned where one could not be made */

static rp_status scaler_check(const rp_grad_scaler *s, const char *call) {
    if (s == &failed_scaler) return rp__fail(RP_ERROR_STATE, "%s: the scaler could not be made", call);
    return rp__handle_check(s, RP__HANDLE_SCALER, call);
}

static void stage_free(stage *g) {
    if (g->found) rp_release(g->found);
    rp__handle_free(g);
}

static void scaler_free(rp_grad_scaler *s) {
    while (s->stages) {
        stage *g = s->stages;
        s->stages = g->next;
        stage_free(g);
    }
    if (s->scale) rp_release(s->scale);
    if (s->tracker) rp_release(s->tracker);
    rp__handle_free(s);
}

rp_grad_scaler *rp_grad_scaler_new_at(const char *site, const rp_grad_scaler_options *options) {
    RP__CALLED_FROM(site);
    rp_grad_scaler_options o;
    if (rp__options_read("rp_grad_scaler_new", options, sizeof o, &o) != RP_OK) return &failed_scaler;
    const double scale = o.init_scale != 0 ? o.init_scale : 65536;
    rp_grad_scaler *s = rp__handle_new(RP__HANDLE_SCALER, sizeof *s);
    if (!s) {
        (void)RP__OOM("a gradient scaler");
        return &failed_scaler;
    }
    s->id = s->stages_id = rp__unique_id();
    s->growth = o.growth_factor != 0 ? o.growth_factor : 2;
    s->backoff = o.backoff_factor != 0 ? o.backoff_factor : 0.5;
    s->interval = o.growth_interval ? o.growth_interval : 2000;
    rp_status status = RP_OK;
    if (!(scale > 0) || !(s->growth > 1) || !(s->backoff > 0 && s->backoff < 1) || s->interval < 1)
        status =
            rp__fail(RP_ERROR_INVALID_ARGUMENT,
                     "rp_grad_scaler_new: the scale must be above 0, the growth above 1, the backoff between 0 and "
                     "1, the interval at least 1");
    rp_scope scope = rp__scope_begin();
    if (!scope.id) status = rp_error_status();
    if (status == RP_OK) {
        rp_tensor *t = rp_full(RP_NO_DIMS, rp_f64(scale));
        rp_tensor *n = rp_zeros(RP_NO_DIMS, RP_OPTIONS(rp_zeros_options, .dtype = RP_I32));
        if (rp__tensor_is_error(t) || rp__tensor_is_error(n)) {
            status = rp_error_status();
        } else {
            s->scale = rp_retain(t);
            s->tracker = rp_retain(n);
        }
    }
    rp__scope_end(scope, NULL, 0);
    if (status == RP_OK) return s;
    scaler_free(s);
    return &failed_scaler;
}

void rp_grad_scaler_release(rp_grad_scaler *s) {
    if (s && s != &failed_scaler && rp__handle_give_up(s, RP__HANDLE_SCALER, "rp_grad_scaler_release")) scaler_free(s);
}

rp_tensor *rp_grad_scaler_scale_at(const char *site, rp_grad_scaler *s, rp_tensor *loss) {
    RP__CALLED_FROM(site);
    if (scaler_check(s, "rp_grad_scaler_scale") != RP_OK) return rp__tensor_error();
    if (rp_guard_bytes(&s->id, sizeof s->id) != RP_OK) return rp__tensor_error();
    return rp_mul(loss, s->scale);
}

/* The gradients of all parameters: n of them; the list is the caller's to free. */
static rp_status gradients(rp_optimizer *opt, rp_tensor ***params, rp_tensor ***grads, size_t *n) {
    size_t all = 0;
    *n = 0;
    if (!rp__optimizer_kind(opt)) return rp_error_status();
    for (size_t g = 0; g < rp_optimizer_group_count(opt); g++) all += rp_optimizer_param_count(opt, g);
    *params = rp__calloc(2 * all + 1, sizeof **params);
    if (!*params) return RP__OOM("rp_grad_scaler_unscale");
    *grads = *params + all;
    for (size_t g = 0; g < rp_optimizer_group_count(opt); g++)
        for (size_t i = 0; i < rp_optimizer_param_count(opt, g); i++) {
            rp_tensor *p = rp__optimizer_param(opt, g, i), *grad = rp_grad_of(p);
            if (!grad) continue;
            (*params)[*n] = p;
            (*grads)[(*n)++] = grad;
        }
    return RP_OK;
}

static int phase_of(const stage *g) { return (int)(g->phase % PHASES); }

static rp_status phase_set(stage *g, int phase) {
    return rp__trace_word_set(&g->phase, g->phase - g->phase % PHASES + (uint64_t)phase);
}

static stage *stage_of(const rp_grad_scaler *s, rp_optimizer *opt) {
    stage *g = s->stages;
    while (g && g->of != rp__optimizer_id(opt)) g = g->next;
    return g;
}

/* Of optimizers that were released, but for what the next update looks at. */
static void forget_released(rp_grad_scaler *s) {
    for (stage **link = &s->stages; *link;) {
        stage *g = *link;
        if (g->of == rp__optimizer_id(g->opt) || phase_of(g) != READY) {
            link = &g->next;
            continue;
        }
        *link = g->next;
        stage_free(g);
    }
}

/* The stage of opt, new at its first step. `found` is memory, also while a trace records: what a graph writes into. */
static rp_status stage_get(rp_grad_scaler *s, rp_optimizer *opt, rp_device device, stage **out) {
    stage *g = stage_of(s, opt);
    if (!g) {
        forget_released(s);
        g = rp__handle_new(RP__HANDLE_SCALER_STAGE, sizeof *g);
        if (!g) return RP__OOM("a gradient scaler");
        g->opt = opt;
        g->of = rp__optimizer_id(opt);
        g->next = s->stages;
        s->stages = g;
    }
    *out = g;
    if (g->found && rp__device_equal(g->found->device, device)) return RP_OK;
    rp__device *d = rp__device_get(device);
    rp_scope scope = rp__scope_begin();
    rp_tensor *found = d && scope.id ? rp__tensor_empty(d, RP_F32, NULL, 0) : NULL;
    if (found && !rp__tensor_is_error(found)) {
        if (g->found) rp_release(g->found);
        g->found = rp_retain(found);
        g->phase = rp__unique_id() * PHASES;
        s->stages_id = rp__unique_id(); /* recorded updates know nothing of it */
    }
    rp__scope_end(scope, NULL, 0);
    return found && !rp__tensor_is_error(found) ? RP_OK : rp_error_status();
}

static rp_status unscale(rp_grad_scaler *s, rp_optimizer *opt) {
    rp_tensor **params = NULL, **grads = NULL;
    stage *g = NULL;
    size_t n = 0;
    rp_status status = gradients(opt, &params, &grads, &n);
    if (status == RP_OK && n == 0)
        status = rp__fail(RP_ERROR_STATE, "rp_grad_scaler_unscale: no parameter has a gradient");
    if (status == RP_OK) status = stage_get(s, opt, grads[0]->device, &g);
    if (status == RP_OK) {
        rp_tensor *finite = rp_isfinite(rp_grad_norm(params, n, INFINITY));
        rp_tensor *found = rp_to_dtype(rp_logical_not(finite), RP_F32);
        status = rp__update_lists_of("scale", grads, NULL, n, NULL, rp_reciprocal(s->scale), NULL, NULL, 0);
        if (rp__tensor_is_error(rp_copy_(g->found, found))) status = rp_error_status();
        if (status == RP_OK) status = phase_set(g, UNSCALED);
    }
    rp__free(params);
    return status;
}

/* In a scope of its own, without a gradient. */
static rp_status guarded(rp_grad_scaler *s, rp_optimizer *opt, rp_status (*work)(rp_grad_scaler *, rp_optimizer *)) {
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? work(s, opt) : rp_error_status();
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

/* The phase of opt; a trace guards what it depends on. */
static rp_status phase_ask(rp_grad_scaler *s, rp_optimizer *opt, int *phase) {
    *phase = READY;
    RP_TRY(rp__optimizer_guard(opt));
    RP_TRY(rp_guard_bytes(&s->id, sizeof s->id));
    stage *g = stage_of(s, opt);
    if (g) RP_TRY(rp_guard_bytes(&g->phase, sizeof g->phase));
    if (g) *phase = phase_of(g);
    return RP_OK;
}

rp_status rp_grad_scaler_unscale_at(const char *site, rp_grad_scaler *s, rp_optimizer *opt) {
    RP__CALLED_FROM(site);
    RP_TRY(scaler_check(s, "rp_grad_scaler_unscale"));
    int phase;
    RP_TRY(phase_ask(s, opt, &phase));
    if (phase != READY)
        return rp__fail(RP_ERROR_STATE,
                        "rp_grad_scaler_unscale: %s was called for this optimizer since the last update",
                        phase == STEPPED ? "rp_grad_scaler_step" : "it");
    return guarded(s, opt, unscale);
}

static rp_status step(rp_grad_scaler *s, rp_optimizer *opt) {
    int phase;
    RP_TRY(phase_ask(s, opt, &phase));
    if (phase == STEPPED)
        return rp__fail(RP_ERROR_STATE, "rp_grad_scaler_step: it was called for this optimizer since the last update");
    if (phase == READY) RP_TRY(unscale(s, opt));
    stage *g = stage_of(s, opt);
    RP_TRY(rp__optimizer_step(opt, g->found));
    return phase_set(g, STEPPED);
}

rp_status rp_grad_scaler_step_at(const char *site, rp_grad_scaler *s, rp_optimizer *opt) {
    RP__CALLED_FROM(site);
    RP_TRY(scaler_check(s, "rp_grad_scaler_step"));
    rp__site_frame frame = rp__site_push(site, "optimizer_step");
    rp_status status = guarded(s, opt, step);
    rp__site_pop(frame);
    return status;
}

/* A gradient that was not finite: less, and counted anew. After so many steps in a row: more, unless that is
   infinite. */
static rp_status update(rp_grad_scaler *s, rp_optimizer *opt) {
    (void)opt;
    rp_tensor *found = NULL;
    for (stage *g = s->stages; g; g = g->next) {
        RP_TRY(rp_guard_bytes(&g->phase, sizeof g->phase));
        if (phase_of(g) != READY) found = found ? rp_maximum(found, g->found) : g->found;
    }
    if (!found)
        return rp__fail(RP_ERROR_STATE, "rp_grad_scaler_update: no gradients were looked at since the last update");
    rp_tensor *bad = rp_ne_scalar(found, rp_i64(0)), *steps = rp_add_scalar(s->tracker, rp_i64(1));
    rp_tensor *due = rp_ge_scalar(steps, rp_i64(s->interval)), *more = rp_mul_scalar(s->scale, rp_f64(s->growth));
    more = rp_where(rp_logical_and(due, rp_isfinite(more)), more, s->scale);
    rp_tensor *scale = rp_where(bad, rp_mul_scalar(s->scale, rp_f64(s->backoff)), more);
    steps = rp_where(rp_logical_or(bad, due), rp_zeros_like(steps), steps);
    if (rp__tensor_is_error(rp_copy_(s->scale, scale)) || rp__tensor_is_error(rp_copy_(s->tracker, steps)))
        return rp_error_status();
    for (stage *g = s->stages; g; g = g->next)
        if (phase_of(g) != READY) RP_TRY(phase_set(g, READY));
    return RP_OK;
}

rp_status rp_grad_scaler_update_at(const char *site, rp_grad_scaler *s) {
    RP__CALLED_FROM(site);
    RP_TRY(scaler_check(s, "rp_grad_scaler_update"));
    RP_TRY(rp_guard_bytes(&s->id, sizeof s->id));
    RP_TRY(rp_guard_bytes(&s->stages_id, sizeof s->stages_id));
    return guarded(s, NULL, update);
}

rp_tensor *rp_grad_scaler_state_at(const char *site, const rp_grad_scaler *s, const char *name) {
    RP__CALLED_FROM(site);
    if (scaler_check(s, "rp_grad_scaler_state") != RP_OK) return rp__tensor_error();
    if (name && strcmp(name, "scale") == 0) return s->scale;
    if (name && strcmp(name, "growth_tracker") == 0) return s->tracker;
    (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_grad_scaler_state: there is no state `%s`", name ? name : "NULL");
    return rp__tensor_error();
}
