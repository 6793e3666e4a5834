/* Reference of pooling, padding and batch normalisation, written from PyTorch's documentation: every window is walked with plain
   loops. */
#include "ref/ref_case.h"

typedef struct window {
    int64_t size[4];
    int ndim;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool ceil;
} window;

static const window windows[] = {
    {{2, 3, 6, 5}, 4, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false},  {{1, 2, 7, 5}, 4, {3, 2}, {2, 1}, {1, 1}, {1, 1}, false},
    {{2, 5, 6}, 3, {2, 3}, {2, 2}, {1, 1}, {1, 1}, true},      {{1, 1, 9, 9}, 4, {3, 3}, {3, 3}, {1, 1}, {1, 1}, true},
    {{1, 2, 4, 4}, 4, {1, 1}, {2, 3}, {0, 0}, {1, 1}, false},  {{2, 1, 8, 7}, 4, {3, 2}, {2, 2}, {1, 1}, {2, 3}, false},
    {{1, 1, 33, 40}, 4, {5, 4}, {2, 3}, {2, 2}, {1, 1}, true}, {{0, 2, 4, 4}, 4, {2, 2}, {1, 1}, {0, 0}, {1, 1}, false},
};
enum { WINDOWS = sizeof windows / sizeof *windows };

/* floor, or ceil, of (in + 2 padding - reach) / stride + 1; a window that would begin behind the input and its left padding does
   not count. */
static int64_t pooled(const window *w, int d) {
    int64_t in = w->size[w->ndim - 2 + d], reach = w->dilation[d] * (w->kernel[d] - 1) + 1;
    int64_t room = in + 2 * w->padding[d] - reach, n = room / w->stride[d] + 1;
    if (w->ceil && room % w->stride[d]) n++;
    if (w->ceil && (n - 1) * w->stride[d] >= in + w->padding[d]) n--;
    return n;
}
static void add_window(ref_case *c, const window *w, bool dilation) {
    add_ints(c, w->kernel, 2);
    bool own = w->stride[0] == w->kernel[0] && w->stride[1] == w->kernel[1];
    add_ints(c, w->stride, own ? 0 : 2);
    add_ints(c, w->padding, 2);
    if (dilation) add_ints(c, w->dilation, 2);
    add_bool(c, w->ceil);
}
static void out_size(const window *w, int64_t *size) {
    for (int k = 0; k + 2 < w->ndim; k++) size[k] = w->size[k];
    for (int d = 0; d < 2; d++) size[w->ndim - 2 + d] = pooled(w, d);
}

static bool max_pool(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= WINDOWS || !ref_is_float(d)) return false;
    const window *w = &windows[variant];
    ref_value *x = input(c, d, w->size, w->ndim);
    add_window(c, w, true);
    int64_t size[4], h = w->size[w->ndim - 2], v = w->size[w->ndim - 1];
    out_size(w, size);
    ref_value *y = output(c, d, size, w->ndim), *index = op->flags ? output(c, RP_I64, size, w->ndim) : NULL;
    int64_t oh = size[w->ndim - 2], ow = size[w->ndim - 1];
    for (int64_t i = 0; i < y->n; i++) {
        const double *plane = x->v + i / (oh * ow) * h * v;
        int64_t best = -1;
        for (int64_t p = 0; p < w->kernel[0] * w->kernel[1]; p++) {
            int64_t row = i / ow % oh * w->stride[0] - w->padding[0] + p / w->kernel[1] * w->dilation[0];
            int64_t column = i % ow * w->stride[1] - w->padding[1] + p % w->kernel[1] * w->dilation[1];
            if (row < 0 || row >= h || column < 0 || column >= v) continue;
            int64_t at = row * v + column;
            if (best < 0 || plane[at] > plane[best] || plane[at] != plane[at]) best = at;
        }
        y->v[i] = plane[best];
        if (index) index->v[i] = (double)best;
    }
    c->exact = true;
    return true;
}

/* Which elements of its window output o has along one dim: [first, end), and how many count. */
static void span(const window *w, int d, int64_t o, bool padding_counts, int64_t *first, int64_t *end, int64_t *count) {
    int64_t in = w->size[w->ndim - 2 + d];
    *first = o * w->stride[d] - w->padding[d];
    *end = *first + w->kernel[d];
    if (*end > in + w->padding[d]) *end = in + w->padding[d];
    *count = *end - *first;
    if (*first < 0) *first = 0;
    if (*end > in) *end = in;
    if (!padding_counts) *count = *end - *first;
}
/* flags 1: of the gradient */
static bool avg_pool(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= 3 * WINDOWS || !ref_is_float(d)) return false;
    window w = windows[variant / 3];
    const bool padding_counts = variant % 3 != 1;
    const int64_t number = variant % 3 == 2 ? 7 : INT64_MIN;
    w.dilation[0] = w.dilation[1] = 1;
    int64_t size[4], h = w.size[w.ndim - 2], v = w.size[w.ndim - 1];
    out_size(&w, size);
    ref_value *from = input(c, d, op->flags ? size : w.size, w.ndim);
    if (op->flags) add_ints(c, w.size, (size_t)w.ndim);
    add_window(c, &w, false);
    add_bool(c, padding_counts);
    add_int(c, number);
    ref_value *to = output(c, d, op->flags ? w.size : size, w.ndim);
    with_mag(to);
    int64_t oh = size[w.ndim - 2], ow = size[w.ndim - 1], outputs = 1;
    for (int k = 0; k < w.ndim; k++) outputs *= size[k];
    for (int64_t i = 0; i < outputs; i++) {
        int64_t r0, r1, rn, c0, c1, cn, plane = i / (oh * ow) * h * v;
        span(&w, 0, i / ow % oh, padding_counts, &r0, &r1, &rn);
        span(&w, 1, i % ow, padding_counts, &c0, &c1, &cn);
        double by = (double)(number != INT64_MIN ? number : rn * cn);
        for (int64_t row = r0; row < r1; row++) {
            for (int64_t column = c0; column < c1; column++) {
                int64_t x = plane + row * v + column, a = op->flags ? i : x, b = op->flags ? x : i;
                to->v[b] += from->v[a] / by;
                to->mag[b] += fabs(from->v[a] / by);
            }
        }
    }
    for (int64_t i = 0; i < to->n; i++) to->v[i] = ref_round(d, to->v[i]);
    c->ulps = 8;
    return true;
}

/* Outputs hand their gradient to the place that their index names. */
static bool max_pool_input(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    (void)op;
    if (variant >= WINDOWS || !ref_is_float(d)) return false;
    const window *w = &windows[variant];
    int64_t size[4], h = w->size[w->ndim - 2], v = w->size[w->ndim - 1];
    out_size(w, size);
    ref_value *grad = input(c, d, size, w->ndim), *index = input(c, RP_I64, size, w->ndim);
    int64_t oh = size[w->ndim - 2], ow = size[w->ndim - 1];
    for (int64_t i = 0; i < index->n; i++) { /* any element of the window */
        int64_t best = -1, wanted = noise(i, 3) % 7;
        for (int64_t p = 0; p < w->kernel[0] * w->kernel[1]; p++) {
            int64_t row = i / ow % oh * w->stride[0] - w->padding[0] + p / w->kernel[1] * w->dilation[0];
            int64_t column = i % ow * w->stride[1] - w->padding[1] + p % w->kernel[1] * w->dilation[1];
            if (row < 0 || row >= h || column < 0 || column >= v) continue;
            if (best < 0 || p <= wanted) best = row * v + column;
        }
        index->v[i] = (double)best;
    }
    if (c->layout == REF_EXPANDED) c->passed_over = true; /* repeated indices would leave their windows */
    add_ints(c, w->size, (size_t)w->ndim);
    add_ints(c, w->kernel, 2);
    add_ints(c, w->stride, 2);
    add_ints(c, w->padding, 2);
    add_ints(c, w->dilation, 2);
    add_bool(c, w->ceil);
    ref_value *y = output(c, d, w->size, w->ndim);
    with_mag(y);
    for (int64_t i = 0; i < grad->n; i++) {
        int64_t at = i / (oh * ow) * h * v + (int64_t)index->v[i];
        y->v[at] += grad->v[i];
        y->mag[at] += fabs(grad->v[i]);
    }
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, y->v[i]);
    c->ulps = 8;
    return true;
}

static bool pad_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    (void)op;
    static const struct {
        int shape, n;
        int64_t pad[6];
    } cases[] = {{0, 2, {1, 2}},         {0, 4, {0, 0, 2, 1}}, {0, 4, {-1, 2, 1, -1}},     {3, 2, {0, 0}},
                 {4, 2, {2, 0}},         {1, 0, {0}},          {6, 6, {1, 0, 0, 3, 2, 2}}, {5, 4, {1, 1, 2, 0}},
                 {9, 4, {3, -4, -2, 7}}, {7, 2, {-4, 0}}};
    if (variant >= (int)(sizeof cases / sizeof *cases)) return false;
    const shape *s = &shapes[cases[variant].shape];
    ref_value *x = input(c, d, s->size, s->ndim);
    add_ints(c, cases[variant].pad, (size_t)cases[variant].n);
    double value = d == RP_BOOL ? 1 : 3;
    add_scalar(c, rp_f64(value));
    int64_t size[RP_MAX_DIMS], before[RP_MAX_DIMS];
    for (int k = 0; k < s->ndim; k++) {
        int p = s->ndim - 1 - k;
        before[k] = 2 * p < cases[variant].n ? cases[variant].pad[2 * p] : 0;
        size[k] =
            s->size[k] + (2 * p < cases[variant].n ? cases[variant].pad[2 * p] + cases[variant].pad[2 * p + 1] : 0);
    }
    ref_value *y = output(c, d, size, s->ndim);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS] = {0};
        bool inside = true;
        unravel(y, i, at);
        for (int k = 0; k < s->ndim; k++) {
            at[k] -= before[k];
            inside = inside && at[k] >= 0 && at[k] < s->size[k];
        }
        y->v[i] = inside ? x->v[ravel(x, at)] : value;
    }
    c->exact = true;
    return true;
}

/* flags 1: batch_norm_train, with its statistics */
static bool batch_norm(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const shape sizes[] = {{2, {5, 3}}, {4, {2, 3, 4, 5}}, {3, {3, 2, 40}}, {2, {70, 1}}};
    const bool train = op->flags || variant % 2, affine = variant / 2 % 2;
    if (variant >= 16 || !ref_is_float(d) || (op->flags && variant % 2)) return false;
    const shape *s = &sizes[variant / 4];
    const int64_t channels = s->size[1], one[] = {channels, 1, 1};
    const double eps = 1e-3, momentum = 0.1;
    ref_value *x = input(c, d, s->size, s->ndim);
    ref_value *w = input(c, d, one, op->flags ? s->ndim - 1 : 1), *b = input(c, d, one, op->flags ? s->ndim - 1 : 1);
    c->absent[1] = c->absent[2] = !affine;
    ref_value *mean = op->flags ? NULL : input(c, d, &channels, 1), *var = op->flags ? NULL : input(c, d, &channels, 1);
    for (int64_t k = 0; var && k < channels; k++) var->v[k] = ref_round(d, fabs(var->v[k]) + 0.5);
    if (!op->flags) {
        if (train) c->absent[3] = c->absent[4] = true; /* what is written to them is looked at in test_batch_norm.c */
        add_bool(c, train);
        add_float(c, momentum);
    }
    add_float(c, eps);
    ref_value *y = output(c, d, s->size, s->ndim), *stat[3] = {NULL};
    with_mag(y);
    for (int k = 0; op->flags && k < 3; k++) {
        stat[k] = output(c, d == RP_F64 ? RP_F64 : RP_F32, &channels, 1);
        with_mag(stat[k]);
    }
    int64_t plane = stride_of(x, 1), row = channels ? x->n / channels : 0;
    for (int64_t ch = 0; ch < channels; ch++) {
        double m = 0, v = 0, a = 0;
        for (int64_t i = 0; i < x->n; i++) {
            if (i / plane % channels != ch) continue;
            m += x->v[i] / (double)row;
            a += fabs(x->v[i]) / (double)row;
        }
        for (int64_t i = 0; i < x->n; i++)
            v += i / plane % channels == ch ? (x->v[i] - m) * (x->v[i] - m) / (double)row : 0;
        for (int k = 0; op->flags && k < 3; k++) stat[k]->mag[ch] = a + 1;
        if (op->flags) {
            stat[0]->v[ch] = m;
            stat[1]->v[ch] = 1 / sqrt(v + eps);
            stat[2]->v[ch] = v * (double)row / (double)(row - 1);
            stat[1]->mag[ch] = (1 + a * a) / (v + eps) / sqrt(v + eps);
            stat[2]->mag[ch] = 4 * (a * a + v);
        }
        if (!train) {
            m = mean->v[ch];
            v = var->v[ch];
        }
        for (int64_t i = 0; i < x->n; i++) {
            if (i / plane % channels != ch) continue;
            double f = 1 / sqrt(v + eps), wk = affine ? w->v[ch] : 1, bk = affine ? b->v[ch] : 0;
            y->v[i] = ref_round(d, (x->v[i] - m) * f * wk + bk);
            y->mag[i] = (fabs(x->v[i]) + fabs(m) + a) * f * fabs(wk) + fabs(bk);
        }
    }
    c->ulps = 16;
    if (c->layout == REF_EXPANDED) c->passed_over = true; /* channels of equal elements have variance 0 */
    return true;
}

static const ref_op ops[] = {
    {"max_pool2d", max_pool, .flags = 0},
    {"max_pool2d_with_indices", max_pool, .flags = 1},
    {"max_pool2d_input", max_pool_input, .flags = 0},
    {"avg_pool2d", avg_pool, .flags = 0},
    {"avg_pool2d_input", avg_pool, .flags = 1},
    {"constant_pad_nd", pad_op, .flags = 0},
    {"batch_norm", batch_norm, .flags = 0},
    {"batch_norm_train", batch_norm, .flags = 1},
};

const ref_family ref_pool = {ops, sizeof ops / sizeof *ops};
