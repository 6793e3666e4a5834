/* Initialisers: fill a tensor in place, with grad mode off. Called by layers and programs. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "core/alloc.h"
#include "core/options.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* t = value, then forgets what was made on the way. */
static rp_status write(rp_tensor *t, rp_tensor *value) {
    return rp__tensor_is_error(rp_copy_(t, value)) ? rp_error_status() : RP_OK;
}

/* Draws in float32 at least, so that half types are rounded once. */
static rp_dtype draw_dtype(const rp_tensor *t) { return t->dtype == RP_F64 ? RP_F64 : RP_F32; }

/* g NULL: the default generator. */
typedef rp_tensor *draw_fn(const int64_t *size, size_t ndim, rp_dtype dtype, double a, double b, rp_generator *g);

static rp_tensor *draw_uniform(const int64_t *size, size_t ndim, rp_dtype dtype, double low, double high,
                               rp_generator *g) {
    rp_tensor *t = rp_rand(size, ndim, RP_OPTIONS(rp_rand_options, .dtype = dtype, .generator = g));
    return rp_add_scalar(rp_mul_scalar(t, rp_f64(high - low)), rp_f64(low));
}

static rp_tensor *draw_normal(const int64_t *size, size_t ndim, rp_dtype dtype, double mean, double std,
                              rp_generator *g) {
    rp_tensor *t = rp_randn(size, ndim, RP_OPTIONS(rp_randn_options, .dtype = dtype, .generator = g));
    return rp_add_scalar(rp_mul_scalar(t, rp_f64(std)), rp_f64(mean));
}

static rp_status fill_drawn(rp_tensor *t, draw_fn *draw, double a, double b, rp_generator *g) {
    RP_TRY(rp__tensor_check(t, "initialiser: the tensor"));
    if (!rp__dtype_is_float((rp_dtype)t->dtype))
        return rp__fail(RP_ERROR_DTYPE, "initialiser: %s is not a floating type", rp_dtype_name((rp_dtype)t->dtype));
    rp_device device = rp_default_device();
    RP_TRY(rp_set_default_device(t->device));
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = !scope.id ? rp_error_status() : write(t, draw(t->size, t->ndim, draw_dtype(t), a, b, g));
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    rp_status restored = rp_set_default_device(device);
    return status != RP_OK ? status : restored;
}

rp_status rp_init_uniform_at(const char *site, rp_tensor *t, double low, double high) {
    RP__CALLED_FROM(site);
    if (!(low <= high))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "init_uniform: expects low <= high, but found low=%g > high=%g", low,
                        high);
    return fill_drawn(t, draw_uniform, low, high, NULL);
}

rp_status rp_init_normal_at(const char *site, rp_tensor *t, double mean, double std) {
    RP__CALLED_FROM(site);
    if (!(std >= 0)) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "init_normal: expects std >= 0, but found std %g", std);
    return fill_drawn(t, draw_normal, mean, std, NULL);
}

rp_status rp_init_constant_at(const char *site, rp_tensor *t, double value) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__tensor_check(t, "initialiser: the tensor"));
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = !scope.id || rp__tensor_is_error(rp_fill_(t, rp_f64(value))) ? rp_error_status() : RP_OK;
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

/* Inputs and outputs of an element of t[0], of t[:, 0]; 0 for a tensor without elements. */
static rp_status fans(const rp_tensor *t, const char *what, double fan[2]) {
    RP_TRY(rp__tensor_check(t, "initialiser: the tensor"));
    if (t->ndim < 2)
        return rp__fail(RP_ERROR_SHAPE, "%s: fan-in and fan-out need a tensor of two or more dimensions, not %u", what,
                        t->ndim);
    double field = 1;
    for (size_t d = 2; d < t->ndim; d++) field *= (double)t->size[d];
    bool empty = field == 0 || t->size[0] == 0 || t->size[1] == 0;
    fan[RP_FAN_IN] = empty ? 0 : (double)t->size[1] * field;
    fan[RP_FAN_OUT] = empty ? 0 : (double)t->size[0] * field;
    return RP_OK;
}

rp_status rp_init_kaiming_uniform_at(const char *site, rp_tensor *t, double a) {
    RP__CALLED_FROM(site);
    double fan[2];
    RP_TRY(fans(t, "kaiming_uniform", fan));
    double bound = sqrt(6.0 / ((1.0 + a * a) * fan[RP_FAN_IN]));
    return fan[RP_FAN_IN] == 0 ? RP_OK : rp_init_uniform(t, -bound, bound);
}

rp_status rp_init_kaiming_normal_at(const char *site, rp_tensor *t, rp_fan which) {
    RP__CALLED_FROM(site);
    double fan[2];
    RP_TRY(fans(t, "kaiming_normal", fan));
    if (which != RP_FAN_IN && which != RP_FAN_OUT)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "kaiming_normal: there is no fan %d", (int)which);
    return fan[which] == 0 ? RP_OK : rp_init_normal(t, 0, sqrt(2.0 / fan[which]));
}

/* False: there is no such name. */
static bool gain_of(const char *name, double param, double *gain) {
    static const char *const ones[] = {"linear", "sigmoid",          "conv1d",           "conv2d",
                                       "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"};
    const struct {
        const char *name;
        double gain;
    } others[] = {
        {"tanh", 5.0 / 3}, {"relu", sqrt(2.0)}, {"leaky_relu", sqrt(2 / (1 + param * param))}, {"selu", 0.75}};
    *gain = 1;
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        if (strcmp(name, ones[i]) == 0) return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        *gain = others[i].gain;
        if (strcmp(name, others[i].name) == 0) return true;
    }
    *gain = 0;
    (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "init_gain: there is no nonlinearity \"%s\"", name);
    return false;
}

double rp_init_gain_at(const char *site, const char *nonlinearity, double param) {
    RP__CALLED_FROM(site);
    double gain;
    (void)gain_of(nonlinearity ? nonlinearity : "(null)", param, &gain);
    return gain;
}

/* gain / sqrt(fan); of a t without elements 0, which draws nothing. */
static rp_status kaiming_read(const char *what, rp_tensor *t, const rp_kaiming_options *options, rp_kaiming_options *o,
                              double *deviation) {
    double fan[2], gain;
    RP_TRY(rp__options_read(what, options, sizeof *o, o));
    RP_TRY(fans(t, what, fan));
    if (o->fan != RP_FAN_IN && o->fan != RP_FAN_OUT)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: there is no fan %d", what, (int)o->fan);
    if (!gain_of(o->nonlinearity ? o->nonlinearity : "leaky_relu", o->a, &gain)) return rp_error_status();
    if (isnan(gain)) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: a slope is a number", what);
    *deviation = fan[o->fan] == 0 ? 0 : gain / sqrt(fan[o->fan]);
    return RP_OK;
}

rp_status rp_init_kaiming_uniform_with_at(const char *site, rp_tensor *t, const rp_kaiming_options *options) {
    RP__CALLED_FROM(site);
    rp_kaiming_options o;
    double deviation;
    RP_TRY(kaiming_read("kaiming_uniform", t, options, &o, &deviation));
    const double bound = sqrt(3.0) * deviation;
    return fill_drawn(t, draw_uniform, -bound, bound, o.generator);
}

rp_status rp_init_kaiming_normal_with_at(const char *site, rp_tensor *t, const rp_kaiming_options *options) {
    RP__CALLED_FROM(site);
    rp_kaiming_options o;
    double deviation;
    RP_TRY(kaiming_read("kaiming_normal", t, options, &o, &deviation));
    return fill_drawn(t, draw_normal, 0, deviation, o.generator);
}

rp_status rp_init_xavier_uniform_at(const char *site, rp_tensor *t, double gain) {
    RP__CALLED_FROM(site);
    double fan[2];
    RP_TRY(fans(t, "xavier_uniform", fan));
    double bound = fabs(gain) * sqrt(6.0 / (fan[RP_FAN_IN] + fan[RP_FAN_OUT]));
    return fan[RP_FAN_IN] == 0 ? RP_OK : rp_init_uniform(t, -bound, bound);
}

rp_status rp_init_xavier_normal_at(const char *site, rp_tensor *t, double gain) {
    RP__CALLED_FROM(site);
    double fan[2];
    RP_TRY(fans(t, "xavier_normal", fan));
    return fan[RP_FAN_IN] == 0 ? RP_OK
                               : rp_init_normal(t, 0, fabs(gain) * sqrt(2.0 / (fan[RP_FAN_IN] + fan[RP_FAN_OUT])));
}

/* The normal distribution within [low, high], by the inverse of its distribution function. */
rp_status rp_init_trunc_normal_at(const char *site, rp_tensor *t, double mean, double std, double low, double high) {
    RP__CALLED_FROM(site);
    if (!(std > 0) || !(low < high))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "init_trunc_normal: expects std > 0 and low < high, but found %g, %g, %g", std, low, high);
    RP_TRY(rp__tensor_check(t, "initialiser: the tensor"));
    if (!rp__dtype_is_float((rp_dtype)t->dtype))
        return rp__fail(RP_ERROR_DTYPE, "initialiser: %s is not a floating type", rp_dtype_name((rp_dtype)t->dtype));
    const double from = erf((low - mean) / std / sqrt(2)), to = erf((high - mean) / std / sqrt(2));
    rp_device device = rp_default_device();
    RP_TRY(rp_set_default_device(t->device));
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = rp_error_status();
    if (scope.id) {
        rp_tensor *value = rp_erfinv(draw_uniform(t->size, t->ndim, draw_dtype(t), from, to, NULL));
        value = rp_add_scalar(rp_mul_scalar(value, rp_f64(std * sqrt(2))), rp_f64(mean));
        status = write(t, rp_clamp(value, rp_f64(low), rp_f64(high)));
    }
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    rp_status restored = rp_set_default_device(device);
    return status != RP_OK ? status : restored;
}

/* Makes the n rows of m numbers (n <= m) orthonormal, one after the other, each twice so that rounding does not add
   up. Rows of random numbers are independent; signs stay those of the factor with a positive diagonal. */
static void orthonormalise(double *a, int64_t n, int64_t m) {
    for (int64_t i = 0; i < n; i++) {
        double *row = a + i * m, norm = 0;
        for (int twice = 0; twice < 2; twice++)
            for (int64_t k = 0; k < i; k++) {
                double dot = 0;
                for (int64_t j = 0; j < m; j++) dot += row[j] * a[k * m + j];
                for (int64_t j = 0; j < m; j++) row[j] -= dot * a[k * m + j];
            }
        for (int64_t j = 0; j < m; j++) norm += row[j] * row[j];
        for (int64_t j = 0; j < m && norm > 0; j++) row[j] /= sqrt(norm);
    }
}

/* a: (rows, rest) drawn; the shorter side is made orthonormal. */
static rp_status orthogonal(rp_tensor *t, double *a, int64_t rows, int64_t rest, double gain) {
    const bool tall = rows > rest;
    rp_tensor *drawn = draw_normal(RP_DIMS(tall ? rest : rows, tall ? rows : rest), RP_F64, 0, 1, NULL);
    RP_TRY(rp_to_host(drawn, a, (size_t)(rows * rest) * sizeof *a));
    orthonormalise(a, tall ? rest : rows, tall ? rows : rest);
    rp_tensor *q = rp_from_data(a, RP_DIMS(tall ? rest : rows, tall ? rows : rest), RP_F64);
    if (tall) q = rp_transpose(q, 0, 1);
    return write(t, rp_reshape(rp_mul_scalar(q, rp_f64(gain)), t->size, t->ndim));
}

rp_status rp_init_orthogonal_at(const char *site, rp_tensor *t, double gain) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__tensor_check(t, "initialiser: the tensor"));
    if (t->ndim < 2 || !rp__dtype_is_float((rp_dtype)t->dtype))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "init_orthogonal: expects a floating tensor of 2 or more dims");
    const int64_t n = rp_numel(t), rows = t->size[0], rest = rows ? n / rows : 0;
    if (n == 0) return RP_OK;
    double *a = rp__alloc((size_t)n * sizeof *a);
    if (!a) return RP__OOM("init_orthogonal");
    rp_device device = rp_default_device();
    rp_status status = rp_set_default_device(t->device);
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    if (!scope.id) status = rp_error_status();
    if (status == RP_OK) status = orthogonal(t, a, rows, rest, gain);
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    rp_status restored = rp_set_default_device(device);
    rp__free(a);
    return status != RP_OK ? status : restored;
}
