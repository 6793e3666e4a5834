/* Reference of products and convolutions. */
#include "ref/ref_case.h"

/* out (rows, n) += sum over k; batch by batch */
static void product(const double *a, const double *b, ref_value *y, int64_t offset, int64_t m, int64_t k, int64_t n,
                    bool b_transposed) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, mag = 0;
            for (int64_t l = 0; l < k; l++) {
                double term = a[i * k + l] * (b_transposed ? b[j * k + l] : b[l * n + j]);
                sum += term;
                mag += fabs(term);
            }
            y->v[offset + i * n + j] = sum;
            y->mag[offset + i * n + j] = mag;
        }
    }
}

static bool matmul_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int na, nb, n;
        int64_t a[4], b[4], out[4];
    } cases[] = {{2, 2, 2, {3, 4}, {4, 5}, {3, 5}},
                 {3, 3, 3, {2, 3, 4}, {2, 4, 5}, {2, 3, 5}},
                 {2, 2, 2, {33, 70}, {70, 17}, {33, 17}},
                 {2, 2, 2, {3, 0}, {0, 5}, {3, 5}},
                 {2, 2, 2, {0, 4}, {4, 5}, {0, 5}},
                 {1, 1, 0, {7}, {7}, {0}},
                 {1, 2, 1, {4}, {4, 5}, {5}},
                 {2, 1, 1, {3, 4}, {4}, {3}},
                 {3, 2, 3, {2, 3, 4}, {4, 5}, {2, 3, 5}},
                 {4, 3, 4, {2, 1, 3, 4}, {5, 4, 2}, {2, 5, 3, 2}},
                 {1, 3, 2, {4}, {2, 4, 5}, {2, 5}},
                 {2, 3, 3, {3, 4}, {2, 4, 5}, {2, 3, 5}}};
    int last = op->flags ? 5 : 12; /* bmm: equal ranks and batch sizes */
    if (variant >= last || d == RP_BOOL || !ref_is_float(d)) return false;
    int na = cases[variant].na, nb = cases[variant].nb, n = cases[variant].n;
    ref_value *a = input(c, d, cases[variant].a, na), *b = input(c, d, cases[variant].b, nb);
    int64_t m = na == 1 ? 1 : a->size[na - 2], k = a->size[na - 1], w = nb == 1 ? 1 : b->size[nb - 1];
    ref_value *y = output(c, d, cases[variant].out, n);
    with_mag(y);
    int lead = n - (na > 1) - (nb > 1);
    int64_t batches = 1;
    for (int x = 0; x < lead; x++) batches *= y->size[x];
    for (int64_t i = 0; i < batches; i++) {
        int64_t ia = 0, ib = 0, rest = i, at[RP_MAX_DIMS];
        for (int x = lead - 1; x >= 0; x--) {
            at[x] = rest % y->size[x];
            rest /= y->size[x];
        }
        for (int x = 0; x < na - 2; x++) ia = ia * a->size[x] + (a->size[x] == 1 ? 0 : at[x + lead - (na - 2)]);
        for (int x = 0; x < nb - 2; x++) ib = ib * b->size[x] + (b->size[x] == 1 ? 0 : at[x + lead - (nb - 2)]);
        product(a->v + ia * m * k, b->v + ib * k * w, y, i * m * w, m, k, w, false);
    }
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, y->v[i]);
    c->ulps = 16;
    return true;
}

static bool linear_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t x_size[][3] = {{3, 4}, {4}, {2, 3, 4}, {0, 4}, {9, 33}};
    static const int ranks[] = {2, 1, 3, 2, 2};
    if (variant >= 10 || !ref_is_float(d)) return false;
    int which = variant / 2, n = ranks[which];
    int64_t k = x_size[which][n - 1], w_size[] = {5, k}, size[RP_MAX_DIMS];
    ref_value *x = input(c, d, x_size[which], n), *w = input(c, d, w_size, 2), *b = input(c, d, w_size, 1);
    c->absent[2] = variant % 2;
    memcpy(size, x_size[which], (size_t)n * sizeof *size);
    size[n - 1] = 5;
    ref_value *y = output(c, d, size, n);
    with_mag(y);
    product(x->v, w->v, y, 0, y->n / 5, k, 5, true);
    for (int64_t i = 0; i < y->n; i++) {
        double bias = c->absent[2] ? 0 : b->v[i % 5];
        y->v[i] = ref_round(d, y->v[i] + bias);
        y->mag[i] += fabs(bias);
    }
    (void)op;
    c->ulps = 16;
    return true;
}

enum { CONV_FORWARD, CONV_INPUT, CONV_WEIGHT };

static bool conv_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int64_t x[4], w[4], stride[2], padding[2], dilation[2], groups;
    } cases[] = {{{2, 3, 6, 7}, {4, 3, 3, 3}, {1, 1}, {0, 0}, {1, 1}, 1},
                 {{1, 4, 8, 8}, {6, 2, 3, 2}, {2, 1}, {1, 2}, {1, 2}, 2},
                 {{2, 3, 5, 5}, {3, 1, 1, 1}, {1, 1}, {0, 0}, {1, 1}, 3},
                 {{0, 2, 4, 4}, {2, 2, 2, 2}, {1, 1}, {0, 0}, {1, 1}, 1},
                 {{1, 1, 3, 3}, {1, 1, 3, 3}, {1, 1}, {2, 2}, {1, 1}, 1}};
    if (variant >= 10 || !ref_is_float(d)) return false;
    int which = variant / 2;
    bool option = variant % 2; /* forward: with bias; all: no batch dim where the batch is one */
    const int64_t *x = cases[which].x, *w = cases[which].w, *st = cases[which].stride, *pad = cases[which].padding;
    const int64_t *dil = cases[which].dilation, groups = cases[which].groups;
    int64_t o[4] = {x[0], w[0], 0, 0};
    for (int k = 0; k < 2; k++) o[2 + k] = (x[2 + k] + 2 * pad[k] - dil[k] * (w[2 + k] - 1) - 1) / st[k] + 1;
    int skip = option && x[0] == 1;
    ref_value *xin = NULL, *win = NULL, *g = NULL, *bias = NULL, *y;
    if (op->flags == CONV_FORWARD) {
        xin = input(c, d, x + skip, 4 - skip);
        win = input(c, d, w, 4);
        bias = input(c, d, w, 1);
        c->absent[2] = !option;
    } else {
        g = input(c, d, o + skip, 4 - skip);
        if (op->flags == CONV_INPUT)
            win = input(c, d, w, 4);
        else
            xin = input(c, d, x + skip, 4 - skip);
        if (op->flags == CONV_INPUT)
            add_ints(c, x + skip, (size_t)(4 - skip));
        else
            add_ints(c, w, 4);
    }
    add_ints(c, st, 2);
    add_ints(c, pad, 2);
    add_ints(c, dil, 2);
    add_int(c, groups);
    y = op->flags == CONV_FORWARD ? output(c, d, o + skip, 4 - skip)
        : op->flags == CONV_INPUT ? output(c, d, x + skip, 4 - skip)
                                  : output(c, d, w, 4);
    with_mag(y);
    int64_t per_group = o[1] / groups;
    for (int64_t n = 0; n < o[0]; n++)
        for (int64_t oc = 0; oc < o[1]; oc++)
            for (int64_t oy = 0; oy < o[2]; oy++)
                for (int64_t ox = 0; ox < o[3]; ox++) {
                    int64_t io = ((n * o[1] + oc) * o[2] + oy) * o[3] + ox;
                    for (int64_t ic = 0; ic < w[1]; ic++)
                        for (int64_t ky = 0; ky < w[2]; ky++)
                            for (int64_t kx = 0; kx < w[3]; kx++) {
                                int64_t iy = oy * st[0] - pad[0] + ky * dil[0], ix = ox * st[1] - pad[1] + kx * dil[1];
                                if (iy < 0 || iy >= x[2] || ix < 0 || ix >= x[3]) continue;
                                int64_t channel = oc / per_group * w[1] + ic;
                                int64_t ixx = ((n * x[1] + channel) * x[2] + iy) * x[3] + ix;
                                int64_t iw = ((oc * w[1] + ic) * w[2] + ky) * w[3] + kx;
                                int64_t to = op->flags == CONV_FORWARD ? io : op->flags == CONV_INPUT ? ixx : iw;
                                double term = op->flags == CONV_FORWARD ? xin->v[ixx] * win->v[iw]
                                              : op->flags == CONV_INPUT ? g->v[io] * win->v[iw]
                                                                        : g->v[io] * xin->v[ixx];
                                y->v[to] += term;
                                y->mag[to] += fabs(term);
                            }
                    if (bias && !c->absent[2]) {
                        y->v[io] += bias->v[oc];
                        y->mag[io] += fabs(bias->v[oc]);
                    }
                }
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, y->v[i]);
    c->ulps = 16;
    return true;
}

static const ref_op ops[] = {
    {"matmul", matmul_op, .flags = 0},
    {"bmm", matmul_op, .flags = 1},
    {"linear", linear_op, .flags = 0},
    {"conv2d", conv_op, .flags = CONV_FORWARD},
    {"conv_input", conv_op, .flags = CONV_INPUT},
    {"conv_weight", conv_op, .flags = CONV_WEIGHT},
};

const ref_family ref_matrix = {ops, sizeof ops / sizeof *ops};
