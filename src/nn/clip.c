/* Clipping of gradients and averages of weights: norms as ops, then one update rule (ops/optim.h) over all tensors.
   Nothing is read on the host, so that a recorded step holds them. */
#include "ops/private.h"
#include <reprise_nn.h>

#include <math.h>

#include "core/alloc.h"
#include "core/handle.h"
#include "nn/update.h"
#include "ops/ops.h"
#include "ops/optim.h"

rp_status rp__update_lists_of(const char *rule, rp_tensor *const *self, rp_tensor *const *other, size_t n,
                              rp_tensor *step, rp_tensor *extra, rp_tensor *found_inf, const double *numbers,
                              size_t n_numbers) {
    const size_t part = (RP__MAX_IN - 5) / (other ? 2 : 1); /* behind five 0-d tensors */
    for (size_t at = 0; at < n; at += part) {
        const size_t count = n - at < part ? n - at : part;
        RP_TRY(rp_foreach_update_(rule, self + at, count, other ? other + at : NULL, other ? count : 0, NULL, 0, NULL,
                                  0, NULL, 0, step, NULL, extra, NULL, found_inf, numbers, n_numbers, 0));
    }
    return RP_OK;
}

/* ---------------------------------------------------------------- gradients */

typedef struct grads {
    rp_tensor **all;
    size_t n;
} grads;

/* Those that are there. The list is the caller's to free. */
static rp_status grads_of(rp_tensor *const *params, size_t n, const char *call, grads *out) {
    *out = (grads){rp__calloc(n + 1, sizeof *out->all), 0};
    if (!out->all) return RP__OOM(call);
    if (n && !params) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: params is NULL", call);
    for (size_t i = 0; i < n; i++) {
        RP_TRY(rp__tensor_check(params[i], "parameter"));
        rp_tensor *grad = rp_grad_of(params[i]);
        if (!grad) continue;
        if (out->n && !rp__device_equal(grad->device, out->all[0]->device))
            return rp__fail(RP_ERROR_DEVICE, "%s: the gradients must be on one device", call);
        out->all[out->n++] = grad;
    }
    return RP_OK;
}

/* In float32 at least: the norm of what half precision holds may be beyond it. */
static rp_tensor *norm_as(rp_tensor *t, double order, rp_dtype type) {
    return rp_linalg_vector_norm(t, rp_f64(order), RP_NO_DIMS, false,
                                 RP_OPTIONS(rp_linalg_vector_norm_options, .dtype = type));
}

/* Gradients of up to that many elements are joined before: one launch for the norms of many, for a copy of what is small. */
enum { JOINED = 1 << 15 };

static rp_tensor *norm_of_some(rp_tensor *const *some, size_t n, double order, rp_dtype type) {
    return rp_reshape(norm_as(n == 1 ? some[0] : rp_cat(some, n, 0), order, type), RP_DIMS(1));
}

/* The norm of all: that of their norms. room: for 2 n tensors. */
static rp_tensor *total_norm(rp_tensor *const *all, size_t n, double order, rp_tensor **room) {
    rp_dtype type = RP_F32;
    rp_tensor **small = room + n;
    size_t norms = 0, joined = 0; /* of those with elements: an empty one has no largest */
    for (size_t i = 0; i < n; i++)
        if (all[i]->dtype == RP_F64) type = RP_F64;
    for (size_t i = 0; i < n; i++) {
        const int64_t elements = rp_numel(all[i]);
        if (elements == 0) continue;
        if (elements > JOINED || order == 0) /* of order 0: how many of the norms are not 0 */
            room[norms++] = norm_of_some(&all[i], 1, order, type);
        else
            small[joined++] = rp_reshape(all[i], RP_DIMS(-1));
    }
    for (size_t at = 0; at < joined; at += RP__MAX_IN)
        room[norms++] = norm_of_some(small + at, joined - at < RP__MAX_IN ? joined - at : RP__MAX_IN, order, type);
    if (!norms) return rp_zeros(RP_NO_DIMS);
    while (norms > 1) { /* as many as a call takes, then those of the calls */
        size_t made = 0;
        for (size_t at = 0; at < norms; at += RP__MAX_IN) {
            const size_t part = norms - at < RP__MAX_IN ? norms - at : RP__MAX_IN;
            room[made++] = norm_of_some(room + at, part, order, type);
        }
        norms = made;
    }
    return rp_reshape(room[0], RP_NO_DIMS);
}

rp_tensor *rp_grad_norm_at(const char *site, rp_tensor *const *params, size_t n, double norm_type) {
    RP__CALLED_FROM(site);
    grads g;
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? grads_of(params, n, "rp_grad_norm", &g) : rp_error_status();
    rp_tensor *norm = rp__tensor_error();
    if (status == RP_OK) {
        rp_tensor **room = rp__calloc(2 * g.n + 1, sizeof *room);
        if (room)
            norm = total_norm(g.all, g.n, norm_type, room);
        else
            (void)RP__OOM("rp_grad_norm");
        rp__free(room);
    }
    if (scope.id) rp__free(g.all);
    rp__scope_end(scope, &norm, 1);
    (void)rp_set_grad_enabled(grad_mode);
    return norm;
}

static rp_status scale_grads(rp_tensor *const *params, size_t n, rp_tensor *norm, double max_norm) {
    grads g;
    rp_status status = grads_of(params, n, "rp_clip_grad_norm", &g);
    if (status == RP_OK && g.n) {
        rp_tensor *factor = rp_mul_scalar(rp_reciprocal(rp_add_scalar(norm, rp_f64(1e-6))), rp_f64(max_norm));
        factor = rp_clamp(factor, rp_none(), rp_f64(1));
        status = rp__tensor_is_error(factor)
                     ? rp_error_status()
                     : rp__update_lists_of("scale", g.all, NULL, g.n, NULL, factor, NULL, NULL, 0);
    }
    rp__free(g.all);
    return status;
}

rp_tensor *rp_clip_grad_norm_at(const char *site, rp_tensor *const *params, size_t n, double max_norm,
                                double norm_type) {
    RP__CALLED_FROM(site);
    rp_tensor *norm = rp_grad_norm(params, n, norm_type);
    if (rp__tensor_is_error(norm)) return norm;
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? scale_grads(params, n, norm, max_norm) : rp_error_status();
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status == RP_OK ? norm : rp__tensor_error();
}

rp_status rp_clip_grad_value_at(const char *site, rp_tensor *const *params, size_t n, double clip_value) {
    RP__CALLED_FROM(site);
    grads g;
    const double bounds[] = {-clip_value, clip_value};
    if (!(clip_value >= 0))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_clip_grad_value: %g is not 0 or larger", clip_value);
    bool grad_mode = rp_set_grad_enabled(false);
    rp_status status = grads_of(params, n, "rp_clip_grad_value", &g);
    if (status == RP_OK) status = rp__update_lists_of("clamp", g.all, NULL, g.n, NULL, NULL, NULL, bounds, 2);
    rp__free(g.all);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

/* ---------------------------------------------------------------- averages */

struct rp_average {
    rp__handle handle;
    rp_tensor **of, **mean; /* n each, retained */
    size_t n;
    rp_tensor *count; /* 0-d f32 */
    double decay;
};

static rp_average failed_average; /* returned where one could not be made */

static rp_status average_check(const rp_average *a, const char *call) {
    if (a == &failed_average) return rp__fail(RP_ERROR_STATE, "%s: the average could not be made", call);
    return rp__handle_check(a, RP__HANDLE_AVERAGE, call);
}

static void average_free(rp_average *a) {
    for (size_t i = 0; i < a->n; i++) {
        if (a->of[i]) rp_release(a->of[i]);
        if (a->mean[i]) rp_release(a->mean[i]);
    }
    if (a->count) rp_release(a->count);
    rp__free(a->of);
    rp__free(a->mean);
    rp__handle_free(a);
}

static rp_status average_fill(rp_average *a, rp_tensor *const *tensors, size_t n) {
    rp_device device = rp_default_device();
    for (size_t i = 0; i < n; i++) {
        RP_TRY(rp__tensor_check(tensors[i], "tensor"));
        if (!rp__dtype_is_float((rp_dtype)tensors[i]->dtype) ||
            !rp__device_equal(tensors[i]->device, tensors[0]->device))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "rp_average_new: tensors must be of floating types, on one device");
        rp_tensor *copy = rp_clone(rp_detach(tensors[i]));
        if (rp__tensor_is_error(copy)) return rp_error_status();
        a->of[a->n] = rp_retain(tensors[i]);
        a->mean[a->n++] = rp_retain(copy);
    }
    if (n) RP_TRY(rp_set_default_device(tensors[0]->device));
    rp_tensor *count = rp_zeros(RP_NO_DIMS);
    RP_TRY(rp_set_default_device(device));
    if (rp__tensor_is_error(count)) return rp_error_status();
    a->count = rp_retain(count);
    return RP_OK;
}

rp_average *rp_average_new_at(const char *site, rp_tensor *const *tensors, size_t n, double decay) {
    RP__CALLED_FROM(site);
    if ((decay != RP_AVERAGE_EQUAL && !(decay >= 0 && decay <= 1)) || (n && !tensors)) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_average_new: %s",
                       n && !tensors ? "the list of tensors is NULL" : "the decay must be from 0 to 1");
        return &failed_average;
    }
    rp_average *a = rp__handle_new(RP__HANDLE_AVERAGE, sizeof *a);
    if (!a) {
        (void)RP__OOM("an average");
        return &failed_average;
    }
    a->decay = decay;
    a->of = rp__calloc(n + 1, sizeof *a->of);
    a->mean = rp__calloc(n + 1, sizeof *a->mean);
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = !scope.id          ? rp_error_status()
                       : a->of && a->mean ? average_fill(a, tensors, n)
                                          : RP__OOM("an average");
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    if (status == RP_OK) return a;
    average_free(a);
    return &failed_average;
}

void rp_average_release(rp_average *a) {
    if (a && a != &failed_average && rp__handle_give_up(a, RP__HANDLE_AVERAGE, "rp_average_release")) average_free(a);
}

rp_status rp_average_update_at(const char *site, rp_average *a) {
    RP__CALLED_FROM(site);
    RP_TRY(average_check(a, "rp_average_update"));
    const double weight = 1 - a->decay;
    bool grad_mode = rp_set_grad_enabled(false);
    rp_status status = rp__tensor_is_error(rp_add_scalar_(a->count, rp_i64(1))) ? rp_error_status() : RP_OK;
    if (status == RP_OK)
        status = a->decay == RP_AVERAGE_EQUAL
                     ? rp__update_lists_of("average", a->mean, a->of, a->n, a->count, NULL, NULL, NULL, 0)
                     : rp__update_lists_of("ema", a->mean, a->of, a->n, a->count, NULL, NULL, &weight, 1);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

rp_tensor *rp_average_tensor_at(const char *site, const rp_average *a, size_t i) {
    RP__CALLED_FROM(site);
    if (average_check(a, "rp_average_tensor") != RP_OK) return rp__tensor_error();
    if (i < a->n) return a->mean[i];
    (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_average_tensor: there is no tensor %zu", i);
    return rp__tensor_error();
}

size_t rp__average_size(const rp_average *a) { return a ? a->n : 0; }

rp_tensor *rp_average_count_at(const char *site, const rp_average *a) {
    RP__CALLED_FROM(site);
    return average_check(a, "rp_average_count") == RP_OK ? a->count : rp__tensor_error();
}

rp_status rp_average_swap_at(const char *site, rp_average *a) {
    RP__CALLED_FROM(site);
    RP_TRY(average_check(a, "rp_average_swap"));
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? RP_OK : rp_error_status();
    for (size_t i = 0; i < a->n && status == RP_OK; i++) {
        rp_tensor *kept = rp_clone(a->mean[i]);
        if (rp__tensor_is_error(rp_copy_(a->mean[i], a->of[i])) || rp__tensor_is_error(rp_copy_(a->of[i], kept)))
            status = rp_error_status();
    }
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}
