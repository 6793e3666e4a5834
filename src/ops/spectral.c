/* Short-time Fourier transforms of real signals. There are no complex types: a number is a pair, the last dim. A transform is a product
   with a matrix of cosines and sines, whose angles are calculated of whole numbers below n_fft and in float64. */
#include <math.h>
#include <string.h>

#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

typedef struct spectrum {
    int64_t n, hop, length, bins; /* of a window; from one to the next; of `window`; frequencies */
    bool one_sided;
    rp_dtype dtype;    /* of the result: that of the signal and of the window together */
    rp_tensor *window; /* (n) of that type; NULL: ones */
} spectrum;

static bool said(const rp_attr *a) { return !rp__attr_is_none(a) && a->v.scalar.v.b; }

/* n_fft, hop_length, win_length are the first attributes; window is operand 1. */
static rp_status spectrum_of(const rp__call *call, const rp_attr *one_sided, spectrum *s) {
    const rp_attr *a = call->attrs;
    rp_tensor *window = call->in[1];
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    if (dtype != RP_F32 && dtype != RP_F64) return rp__call_refuse_dtype(call, dtype);
    s->n = a[0].v.i;
    if (s->n < 1 || s->n >= INT64_C(1) << 30)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "n_fft=%lld is no size of a window", (long long)s->n);
    s->hop = rp__attr_is_none(&a[1]) ? s->n / 4 : a[1].v.i;
    s->length = rp__attr_is_none(&a[2]) ? s->n : a[2].v.i;
    s->one_sided = rp__attr_is_none(one_sided) || said(one_sided);
    s->bins = s->one_sided ? s->n / 2 + 1 : s->n;
    if (s->hop < 1)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "windows %lld apart (hop_length) would never end",
                            (long long)s->hop);
    if (s->length < 1 || s->length > s->n)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "win_length=%lld does not lie within n_fft=%lld",
                            (long long)s->length, (long long)s->n);
    if (window && (window->ndim != 1 || !rp__dim_is(RP__DIM_EQ, window->size[0], s->length)))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "a window is one row of win_length=%lld numbers, not %u dims, the first of them of %lld",
                            (long long)s->length, window->ndim,
                            window->ndim ? (long long)rp__dim_hint(window->size[0]) : 0LL);
    rp__promotion promotion = {RP_DTYPE_NONE, RP_DTYPE_NONE, RP_DTYPE_NONE};
    rp__promote_tensor(&promotion, dtype, 1);
    if (window) rp__promote_tensor(&promotion, (rp_dtype)window->dtype, 1);
    s->dtype = rp__promotion_result(&promotion);
    if (window) window = rp_to_dtype(window, s->dtype);
    if (!window && s->length < s->n) {
        const rp_dim ones = s->length;
        window = rp_expand(rp__number_beside(call->in[0], rp_i64(1), dtype), &ones, 1);
    }
    if (window && s->length < s->n) { /* in the middle */
        const int64_t left = (s->n - s->length) / 2;
        window = rp_constant_pad_nd(window, RP_DIMS(left, s->n - s->length - left));
    }
    s->window = window;
    return window && rp__tensor_is_error(window) ? rp_error_status() : RP_OK;
}

/* Of the frequencies: 0 and, of an even n, the last one, which are their own mirror image and have no sine. */
static rp_tensor *own_mirrors(const spectrum *s, const rp_tensor *like) {
    rp_tensor *k = rp__count_beside(like, s->bins), *own = rp_eq_scalar(k, rp_i64(0));
    return s->n % 2 ? own : rp_logical_or(own, rp_eq_scalar(k, rp_i64(s->n / 2)));
}

/* cos (or sin) of 2 pi i k / n, of places i below n and frequencies k, (n, bins): those of n angles, each in many places. */
static rp_tensor *waves(const spectrum *s, const rp_tensor *like, bool sines) {
    rp_tensor *i = rp__count_beside(like, s->n), *k = rp__count_beside(like, s->bins);
    rp_tensor *angle = rp_mul_scalar(rp_to_dtype(i, RP_F64), rp_f64(2 * M_PI / (double)s->n));
    rp_tensor *wave = rp_to_dtype(sines ? rp_sin(angle) : rp_cos(angle), (rp_dtype)like->dtype);
    rp_tensor *at = rp_remainder_scalar(rp_mul(rp_unsqueeze(i, 1), k), rp_i64(s->n));
    return rp_index(wave, &at, 1);
}

rp_status rp__expand_stft(const rp__call *call) {
    const rp_attr *a = call->attrs;
    rp_tensor *x = call->in[0];
    const bool center = a[3].v.b, alone = x->ndim == 1;
    spectrum s;
    if (said(&a[7])) return rp__op_error(call, RP_ERROR_UNAVAILABLE, "return_complex=True: there are no complex types");
    if (x->ndim != 1 && x->ndim != 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "a signal has one dim, or two of a batch, not %u", x->ndim);
    if (center && !rp__attr_is_none(&a[8]))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "align_to_window is for signals that are not centered");
    RP_TRY(spectrum_of(call, &a[6], &s));
    x = rp_to_dtype(x, s.dtype);
    if (alone) x = rp_unsqueeze(x, 0);
    if (center) {
        x = rp_squeeze(rp_pad(rp_unsqueeze(x, 1), RP_DIMS(s.n / 2, s.n / 2), a[4].v.string), 1);
    } else if (said(&a[8]) && s.length < s.n) {
        const int64_t left = (s.n - s.length) / 2;
        x = rp_constant_pad_nd(x, RP_DIMS(left, s.n - s.length - left));
    }
    if (rp__tensor_is_error(x)) return rp_error_status();
    if (rp__dim_is(RP__DIM_LT, x->size[1], s.n))
        return rp__op_error(call, RP_ERROR_SHAPE, "a signal of %lld has no window of n_fft=%lld",
                            (long long)rp__dim_hint(x->size[1]), (long long)s.n);
    x = rp_unfold(x, 1, s.n, s.hop); /* (batch, windows, n) */
    if (s.window) x = rp_mul(x, s.window);
    rp_tensor *part[2] = {rp_matmul(x, waves(&s, x, false)), rp_neg(rp_matmul(x, waves(&s, x, true)))};
    part[1] = rp_masked_fill_scalar(part[1], own_mirrors(&s, x), rp_i64(0)); /* whatever the signal is */
    rp_tensor *y = rp_transpose(rp_stack(part, 2, -1), 1, 2);
    if (a[5].v.b) y = rp_mul_scalar(y, rp_f64(1 / sqrt((double)s.n)));
    return rp__give(call, alone ? rp_squeeze(y, 0) : y);
}

rp_status rp__expand_istft(const rp__call *call) {
    const rp_attr *a = call->attrs;
    rp_tensor *x = call->in[0];
    const bool center = a[3].v.b, alone = x->ndim == 3, sized = !rp__attr_is_none(&a[6]);
    spectrum s;
    if (a[7].v.b) return rp__op_error(call, RP_ERROR_UNAVAILABLE, "return_complex=True: there are no complex types");
    if ((x->ndim != 3 && x->ndim != 4) || !rp__dim_is(RP__DIM_EQ, x->size[x->ndim - 1], 2) ||
        rp__dim_is(RP__DIM_EQ, rp__tensor_numel(x), 0))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "expected pairs (frequencies, windows, 2) or a batch of them, which is not empty");
    RP_TRY(spectrum_of(call, &a[5], &s));
    x = rp_to_dtype(x, s.dtype);
    if (rp__tensor_is_error(x)) return rp_error_status();
    if (s.hop > s.length)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "windows of win_length=%lld that are %lld apart leave out what lies between",
                            (long long)s.length, (long long)s.hop);
    if (!rp__dim_is(RP__DIM_EQ, x->size[x->ndim - 3], s.bins))
        return rp__op_error(call, RP_ERROR_SHAPE, "there are %lld frequencies, not %lld", (long long)s.bins,
                            (long long)rp__dim_hint(x->size[x->ndim - 3]));
    if (alone) x = rp_unsqueeze(x, 0);
    if (!s.one_sided) { /* the rest is the mirror image of what a real signal has */
        s.bins = s.n / 2 + 1;
        x = rp_narrow(x, 1, 0, s.bins);
    }
    x = rp_transpose(x, 1, 2); /* (batch, windows, frequencies, 2) */
    if (rp__tensor_is_error(x)) return rp_error_status();
    const rp_dim windows = x->size[1];
    /* frequencies but the first and, of an even n, the last stand for themselves and their mirror image */
    rp_tensor *once = own_mirrors(&s, x);
    rp_tensor *times = rp_add_scalar(rp_to_dtype(rp_logical_not(once), (rp_dtype)x->dtype), rp_i64(1));
    rp_tensor *part[2];
    for (int p = 0; p < 2; p++) {
        rp_tensor *wave = rp_mul(waves(&s, x, p), times);
        rp_tensor *given = rp_select(x, -1, p);
        if (p) given = rp_masked_fill_scalar(given, once, rp_i64(0)); /* whatever stands there */
        part[p] = rp_matmul(given, rp_transpose(wave, 0, 1));
    }
    const double scale = a[4].v.b ? 1 / sqrt((double)s.n) : 1 / (double)s.n;
    rp_tensor *y = rp_mul_scalar(rp_sub(part[0], part[1]), rp_f64(scale)), *square;
    if (s.window) y = rp_mul(y, s.window);
    const rp_dim all =
        rp__dim_apply(RP__DIM_ADD, rp__dim_apply(RP__DIM_MUL, rp__dim_apply(RP__DIM_SUB, windows, 1), s.hop), s.n);
    const rp_dim each[2] = {windows, s.n};
    square = s.window ? rp_mul(s.window, s.window) : rp__number_beside(x, rp_i64(1), s.dtype);
    y = rp_unfold_backward(y, RP_DIMS(x->size[0], all), 1, s.n, s.hop);
    square = rp_unfold_backward(rp_expand(square, each, 2), &all, 1, 0, s.n, s.hop);
    const rp_dim start = center ? s.n / 2 : 0;
    rp_dim end = center ? rp__dim_apply(RP__DIM_SUB, all, s.n / 2) : all, lacks = 0;
    if (sized) {
        if (a[6].v.i < 0 || a[6].v.i >= RP__REACH_LIMIT)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "length must be a size, not %lld",
                                (long long)a[6].v.i);
        const rp_dim wanted = rp__dim_apply(RP__DIM_ADD, start, a[6].v.i);
        const bool longer = rp__dim_is(RP__DIM_LT, all, wanted);
        end = longer ? all : wanted;
        if (longer) lacks = rp__dim_apply(RP__DIM_SUB, wanted, all);
    }
    y = rp_div(rp_slice(y, 1, start, end, 1), rp_slice(square, 0, start, end, 1));
    if (!rp__dim_is(RP__DIM_EQ, lacks, 0)) y = rp_constant_pad_nd(y, RP_DIMS(0, lacks));
    return rp__give(call, alone ? rp_squeeze(y, 0) : y);
}

static rp_status shifted(const rp__call *call, bool back) {
    const rp_attr *dims = &call->attrs[0];
    rp_tensor *x = call->in[0];
    const size_t n = dims->v.ints ? dims->n : x->ndim;
    rp_dim by[RP_MAX_DIMS];
    int64_t at[RP_MAX_DIMS];
    if (n > RP_MAX_DIMS) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%zu dims are too many", n);
    for (size_t k = 0; k < n; k++) {
        unsigned dim;
        RP_TRY(rp__call_dim(call, dims->v.ints ? dims->v.ints[k] : (int64_t)k, x->ndim, &dim));
        at[k] = dim;
        by[k] = x->ndim ? rp__dim_apply(RP__DIM_FLOORDIV, rp__dim_apply(RP__DIM_ADD, x->size[dim], back), 2) : 0;
    }
    return rp__give(call, rp_roll_at(call->site, x, by, n, at, n));
}
rp_status rp__expand_fft_fftshift(const rp__call *call) { return shifted(call, false); }
rp_status rp__expand_fft_ifftshift(const rp__call *call) { return shifted(call, true); }
