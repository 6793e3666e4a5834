/* Reference of reductions, normalisations, losses. */
#include "ref/ref_case.h"

enum { SUM, MEAN, AMAX };

static bool reduction(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int shape, n_dims;
        int64_t dims[3];
        bool keep;
    } cases[] = {{0, 0, {0}, false},   {0, 1, {0}, false}, {0, 1, {-1}, true},       {6, 2, {0, 2}, false},
                 {6, 2, {2, 1}, true}, {1, 0, {0}, false}, {1, 1, {-1}, true},       {3, 1, {0}, false},
                 {5, 1, {1}, false},   {5, 1, {0}, false}, {8, 3, {1, 9, -1}, true}, {9, 1, {0}, false},
                 {9, 1, {1}, false},   {9, 0, {0}, true},  {7, 2, {1, 3}, false}};
    if (variant >= (int)(sizeof cases / sizeof *cases) || (op->flags == MEAN && !ref_is_float(d))) return false;
    const shape *s = &shapes[cases[variant].shape];
    ref_value *x = input(c, d, s->size, s->ndim);
    uint32_t mask = 0;
    for (int k = 0; k < cases[variant].n_dims; k++)
        mask |= 1u << (cases[variant].dims[k] < 0 ? cases[variant].dims[k] + (s->ndim ? s->ndim : 1)
                                                  : cases[variant].dims[k]);
    if (cases[variant].n_dims == 0) mask = 0xffff;
    int64_t kept[RP_MAX_DIMS], size[RP_MAX_DIMS], rows = 1;
    int n = 0;
    for (int k = 0; k < s->ndim; k++) {
        bool reduced = mask >> k & 1u;
        kept[k] = reduced ? 1 : s->size[k];
        rows *= reduced ? s->size[k] : 1;
        if (!reduced || cases[variant].keep) size[n++] = kept[k];
    }
    if (op->flags == AMAX && rows == 0) {
        c->passed_over = true;
        return true;
    }
    add_ints(c, cases[variant].dims, (size_t)cases[variant].n_dims);
    add_bool(c, cases[variant].keep);
    rp_dtype type = op->flags == AMAX ? d : op->flags == SUM && !ref_is_float(d) ? RP_I64 : d;
    if (op->flags != AMAX) add_dtype(c, RP_DTYPE_NONE);
    ref_value grid = ref_new(RP_F64, kept, s->ndim), *y = output(c, type, size, n);
    with_mag(y);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = op->flags == AMAX ? -INFINITY : 0;
    for (int64_t i = 0; i < x->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(x, i, at);
        for (int k = 0; k < s->ndim; k++) at[k] = kept[k] == 1 ? 0 : at[k];
        int64_t o = ravel(&grid, at);
        y->v[o] = op->flags == AMAX ? fmax(y->v[o], x->v[i]) : y->v[o] + x->v[i];
        y->mag[o] += op->flags == AMAX ? 0 : fabs(x->v[i]);
    }
    for (int64_t i = 0; i < y->n; i++) {
        if (op->flags == MEAN) {
            y->v[i] = rows ? y->v[i] / (double)rows : NAN;
            y->mag[i] /= (double)rows;
        }
        y->v[i] = ref_round(type, y->v[i]);
    }
    c->exact = op->flags == AMAX || !ref_is_float(d);
    c->ulps = 8;
    return true;
}

static bool softmax_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][2] = {{0, 1}, {0, 0}, {1, -1}, {3, 0}, {5, 1}, {5, 0},
                                   {6, 1}, {8, 9}, {9, -1}, {9, 0}, {2, 0}};
    if (variant >= 11 || !ref_is_float(d)) return false;
    const shape *s = &shapes[cases[variant][0]];
    int dim = cases[variant][1] < 0 ? cases[variant][1] + (s->ndim ? s->ndim : 1) : cases[variant][1];
    ref_value *x = input(c, d, s->size, s->ndim);
    add_int(c, cases[variant][1]);
    ref_value *y = output(c, d, x->size, x->ndim);
    with_mag(y);
    int64_t inner = s->ndim ? stride_of(x, dim) : 1, row = s->ndim ? s->size[dim] : 1;
    for (int64_t i = 0; i < x->n; i++) {
        int64_t first = i - i / inner % row * inner;
        double high = -INFINITY, total = 0;
        for (int64_t k = 0; k < row; k++) high = fmax(high, x->v[first + k * inner]);
        for (int64_t k = 0; k < row; k++) total += exp(x->v[first + k * inner] - high);
        double z = x->v[i] - high;
        y->v[i] = ref_round(d, op->flags ? z - log(total) : exp(z) / total);
        y->mag[i] = op->flags ? fabs(z) + fabs(log(total)) + 1 : 4 * y->v[i];
    }
    c->ulps = 8;
    return true;
}

/* layer_norm and native_layer_norm over the last dims; with weight and bias, one of them, none. */
static bool layer_norm_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][2] = {{0, 1}, {0, 2}, {6, 1}, {6, 2}, {9, 1}, {7, 2}, {5, 1}, {3, 1}};
    if (variant >= 24 || !ref_is_float(d)) return false;
    const shape *s = &shapes[cases[variant / 3][0]];
    int n = cases[variant / 3][1], affine = variant % 3;
    const int64_t *tail = s->size + s->ndim - n;
    ref_value *x = input(c, d, s->size, s->ndim);
    ref_value *w = input(c, d, tail, n), *b = input(c, d, tail, n);
    c->absent[1] = affine == 0;
    c->absent[2] = affine != 2;
    add_ints(c, tail, (size_t)n);
    double eps = 1e-5;
    add_float(c, eps);
    int64_t row = w->n, rows = row ? x->n / row : 0, kept[RP_MAX_DIMS];
    for (int k = 0; k < s->ndim; k++) kept[k] = k < s->ndim - n ? s->size[k] : 1;
    rp_dtype wide = d == RP_F64 ? RP_F64 : RP_F32;
    ref_value *y = output(c, d, x->size, x->ndim), *mean = NULL, *rstd = NULL;
    with_mag(y);
    if (op->flags) {
        mean = output(c, wide, kept, s->ndim);
        rstd = output(c, wide, kept, s->ndim);
        with_mag(mean);
        for (int64_t r = 0; r < mean->n; r++) mean->v[r] = rstd->v[r] = NAN;
    }
    for (int64_t r = 0; r < rows; r++) {
        double m = 0, v = 0, a = 0;
        for (int64_t k = 0; k < row; k++) {
            m += x->v[r * row + k] / (double)row;
            a += fabs(x->v[r * row + k]) / (double)row;
        }
        for (int64_t k = 0; k < row; k++) v += (x->v[r * row + k] - m) * (x->v[r * row + k] - m) / (double)row;
        double f = 1 / sqrt(v + eps);
        for (int64_t k = 0; k < row; k++) {
            double z = (x->v[r * row + k] - m) * f;
            double wk = c->absent[1] ? 1 : w->v[k], bk = c->absent[2] ? 0 : b->v[k];
            y->v[r * row + k] = ref_round(d, z * wk + bk);
            y->mag[r * row + k] = (fabs(x->v[r * row + k]) + a) * f * fabs(wk) + fabs(bk);
        }
        if (mean) {
            mean->v[r] = m;
            mean->mag[r] = a;
            rstd->v[r] = f;
        }
    }
    c->ulps = 16;
    /* A row whose elements are equal has variance 0 and 1/std 316: rounding errors of the mean show; not of interest. */
    if (c->layout == REF_EXPANDED) c->passed_over = true;
    return true;
}

static bool cross_entropy_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    bool rows_only = op->flags;
    if (variant >= (rows_only ? 3 : 12) || !ref_is_float(d)) return false;
    static const int64_t sizes[][2] = {{4, 7}, {1, 3}, {33, 100}};
    int which = variant % 4 == 3 ? 0 : variant % 4, reduction = rows_only ? 0 : variant / 4;
    bool single = !rows_only && variant % 4 == 3;
    const int64_t *size = sizes[which];
    int64_t classes = size[1], n = single ? 1 : size[0], ignore = 2;
    ref_value *x = input(c, d, single ? size + 1 : size, single ? 1 : 2);
    ref_value *t = input(c, RP_I64, size, single ? 0 : 1);
    for (int64_t i = 0; i < n; i++) t->v[i] = (double)(noise(i, 9) % (unsigned)classes);
    settle(c, t);
    if (!rows_only) add_int(c, reduction);
    add_int(c, ignore);
    rp_dtype wide = d == RP_F64 ? RP_F64 : RP_F32;
    ref_value loss = ref_new(RP_F64, &n, 1), high_of = ref_new(RP_F64, &n, 1), lse = ref_new(RP_F64, &n, 1);
    double total = 0, kept = 0, mag = 0;
    for (int64_t i = 0; i < n; i++) {
        double high = -INFINITY, sum = 0;
        for (int64_t k = 0; k < classes; k++) high = fmax(high, x->v[i * classes + k]);
        for (int64_t k = 0; k < classes; k++) sum += exp(x->v[i * classes + k] - high);
        high_of.v[i] = high;
        lse.v[i] = high + log(sum);
        bool ignored = t->v[i] == (double)ignore;
        loss.v[i] = ignored ? 0 : lse.v[i] - x->v[i * classes + (int64_t)t->v[i]];
        total += loss.v[i];
        kept += !ignored;
        mag += ignored ? 0 : fabs(lse.v[i]) + 4;
    }
    ref_value *y = output(c, rows_only ? wide : d, &n, reduction || single ? 0 : 1);
    with_mag(y);
    for (int64_t i = 0; i < y->n; i++) {
        y->v[i] = ref_round(y->dtype, reduction == 0 ? loss.v[i] : reduction == 1 ? total / kept : total);
        y->mag[i] = reduction == 0 ? fabs(lse.v[i]) + 4 : reduction == 1 ? mag / kept : mag;
    }
    if (rows_only) {
        ref_value *high = output(c, wide, &n, 1), *l = output(c, wide, &n, 1);
        with_mag(l);
        for (int64_t i = 0; i < n; i++) {
            high->v[i] = high_of.v[i];
            l->v[i] = lse.v[i] - high_of.v[i];
            l->mag[i] = fabs(l->v[i]) + 4;
        }
    }
    c->ulps = 8;
    return true;
}

static const ref_op ops[] = {
    {"sum", reduction, .flags = SUM},
    {"mean", reduction, .flags = MEAN},
    {"amax", reduction, .flags = AMAX},
    {"softmax", softmax_op, .flags = 0},
    {"log_softmax", softmax_op, .flags = 1},
    {"layer_norm", layer_norm_op, .flags = 0},
    {"native_layer_norm", layer_norm_op, .flags = 1},
    {"cross_entropy", cross_entropy_op, .flags = 0},
    {"cross_entropy_rows", cross_entropy_op, .flags = 1},
};

const ref_family ref_reduce = {ops, sizeof ops / sizeof *ops};
