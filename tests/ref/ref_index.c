/* Reference of joining and indexing. */
#include "ref/ref_case.h"

static bool cat_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= 3 + TYPES) return false;
    static const int64_t parts[3][3] = {{2, 3, 2}, {2, 1, 2}, {2, 4, 2}};
    rp_dtype other = variant < 3 ? d : all_types[variant - 3];
    int dim = variant == 1 ? 0 : 1;
    int64_t size[3] = {2, 8, 2};
    if (dim == 0) size[0] = 6, size[1] = 3;
    rp_dtype type = ref_promote(d, other);
    if (variant == 2) { /* an old empty tensor takes no part */
        static const int64_t none[] = {0};
        input(c, d, none, 1);
    }
    for (int k = 0; k < 3; k++) input(c, k == 1 ? other : d, parts[dim == 0 ? 0 : k], 3);
    add_int(c, variant % 2 ? dim : dim - 3);
    ref_value *y = output(c, type, size, 3);
    int64_t offset = 0;
    for (int k = variant == 2; k < c->n_in; k++) {
        const ref_value *x = &c->in[k];
        for (int64_t i = 0; i < x->n; i++) {
            int64_t at[RP_MAX_DIMS];
            unravel(x, i, at);
            at[dim] += offset;
            y->v[ravel(y, at)] = ref_round(type, x->v[i]);
        }
        offset += x->size[dim];
    }
    (void)op;
    c->exact = true;
    return true;
}

/* index into a dim of n entries */
static ref_value *index_input(ref_case *c, rp_dtype d, const int64_t *size, int ndim, int64_t n) {
    ref_value *r = input(c, d, size, ndim);
    for (int64_t i = 0; i < r->n; i++) r->v[i] = (double)(noise(i, 77) % (unsigned)n);
    settle(c, r);
    return r;
}

static bool gather_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int n, dim;
        int64_t self[3], index[3];
    } cases[] = {{2, 0, {3, 4}, {5, 4}}, {2, 1, {3, 4}, {2, 6}}, {3, -2, {2, 3, 4}, {2, 7, 3}},
                 {1, 0, {9}, {4}},       {0, 0, {0}, {0}},       {2, 0, {3, 4}, {0, 4}}};
    if (variant >= 6) return false;
    int n = cases[variant].n, dim = cases[variant].dim < 0 ? cases[variant].dim + n : cases[variant].dim;
    ref_value *x = input(c, d, cases[variant].self, n);
    ref_value *index = index_input(c, variant % 2 ? RP_I32 : RP_I64, cases[variant].index, n, n ? x->size[dim] : 1);
    add_int(c, cases[variant].dim);
    ref_value *y = output(c, d, index->size, n);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        at[dim] = (int64_t)index->v[i];
        y->v[i] = x->v[n ? ravel(x, at) : 0];
    }
    (void)op;
    c->exact = true;
    return true;
}

static bool embedding_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t weight[] = {7, 5}, index_size[] = {3, 4};
    if (variant >= 6) return false;
    int n = variant / 2;
    ref_value *w = input(c, d, weight, 2);
    ref_value *index = index_input(c, variant % 2 ? RP_I32 : RP_I64, index_size, n, 7);
    int64_t size[] = {3, 4, 5};
    size[n] = 5;
    ref_value *y = output(c, d, size, n + 1);
    for (int64_t i = 0; i < y->n; i++) y->v[i] = w->v[(int64_t)index->v[i / 5] * 5 + i % 5];
    (void)op;
    c->exact = true;
    return true;
}

static bool embedding_backward_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t grad_size[] = {40, 5}, out_size[] = {7, 5};
    if (variant >= 2 || !ref_is_float(d)) return false;
    ref_value *g = input(c, d, grad_size, 2), *index = index_input(c, variant ? RP_I32 : RP_I64, grad_size, 1, 7);
    add_int(c, 7);
    ref_value *y = output(c, d, out_size, 2);
    with_mag(y);
    for (int64_t i = 0; i < g->n; i++) {
        y->v[(int64_t)index->v[i / 5] * 5 + i % 5] += g->v[i];
        y->mag[(int64_t)index->v[i / 5] * 5 + i % 5] += fabs(g->v[i]);
    }
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, y->v[i]);
    (void)op;
    c->ulps = 8; /* 40 rows on 7 places */
    c->narrow = true;
    return true;
}

static bool scatter_add_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int n, dim;
        int64_t self[2], index[2], src[2];
    } cases[] = {{2, 0, {3, 4}, {5, 4}, {5, 4}},
                 {2, 1, {3, 4}, {2, 6}, {3, 7}},
                 {1, -1, {5}, {20}, {20}},
                 {0, 0, {0}, {0}, {0}},
                 {2, 0, {3, 4}, {0, 4}, {1, 4}}};
    if (variant >= 5 || d == RP_BOOL) return false;
    int n = cases[variant].n, dim = cases[variant].dim < 0 ? cases[variant].dim + n : cases[variant].dim;
    ref_value *x = input(c, d, cases[variant].self, n);
    ref_value *index = index_input(c, RP_I64, cases[variant].index, n, n ? x->size[dim] : 1);
    ref_value *src = input(c, d, cases[variant].src, n);
    add_int(c, cases[variant].dim);
    ref_value *y = output(c, d, x->size, n);
    with_mag(y);
    for (int64_t i = 0; i < x->n; i++) {
        y->v[i] = x->v[i];
        y->mag[i] = fabs(x->v[i]);
    }
    for (int64_t i = 0; i < index->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(index, i, at);
        double add = src->v[n ? ravel(src, at) : 0];
        at[dim] = (int64_t)index->v[i];
        int64_t o = n ? ravel(y, at) : 0;
        y->v[o] += add;
        y->mag[o] += fabs(add);
    }
    for (int64_t i = 0; i < y->n; i++) y->v[i] = ref_round(d, y->v[i]);
    (void)op;
    c->exact = !ref_is_float(d);
    c->ulps = 10;
    c->narrow = true;
    return true;
}

/* Ties: the lower index comes first. */
static bool topk_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int shape, dim, k;
        bool largest;
    } cases[] = {{0, -1, 2, true},  {0, 0, 3, false}, {6, 1, 1, true}, {9, 1, 10, true},
                 {9, 0, 37, false}, {1, 0, 1, true},  {3, 0, 0, true}};
    if (variant >= 7 || d == RP_BOOL) return false;
    const shape *s = &shapes[cases[variant].shape];
    int dim = cases[variant].dim < 0 ? cases[variant].dim + s->ndim : cases[variant].dim, k = cases[variant].k;
    ref_value *x = input(c, d, s->size, s->ndim);
    add_int(c, k);
    add_int(c, cases[variant].dim);
    add_bool(c, cases[variant].largest);
    add_bool(c, true);
    int64_t size[RP_MAX_DIMS], inner = s->ndim ? stride_of(x, dim) : 1, row = s->ndim ? s->size[dim] : 1;
    memcpy(size, s->size, sizeof size);
    if (s->ndim) size[dim] = k;
    ref_value *values = output(c, d, size, s->ndim), *indices = output(c, RP_I64, size, s->ndim);
    for (int64_t first = 0; first < x->n && values->n; first++) {
        if (first / inner % row) continue;
        uint8_t taken[64] = {0};
        for (int i = 0; i < k; i++) {
            int64_t best = -1;
            for (int64_t e = 0; e < row; e++) {
                if (taken[e]) continue;
                double u = x->v[first + e * inner], v = best < 0 ? 0 : x->v[first + best * inner];
                if (best < 0 || (cases[variant].largest ? u > v : u < v)) best = e;
            }
            taken[best] = 1;
            int64_t o = first / inner / row * inner * k + first % inner + i * inner;
            values->v[o] = x->v[first + best * inner];
            indices->v[o] = (double)best;
        }
    }
    (void)op;
    c->exact = true;
    return true;
}

/* sort, and its indices alone (flags): an insertion sort of each row. */
static bool sort_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][2] = {{0, -1}, {0, 0}, {6, 1}, {9, 1}, {9, 0}, {1, 0},
                                   {1, -1}, {3, 0}, {4, 0}, {5, 1}, {8, 9}, {2, 0}};
    if (variant >= 24) return false;
    const bool descending = variant % 2;
    const shape *s = &shapes[cases[variant / 2][0]];
    int dim = cases[variant / 2][1];
    ref_value *x = input(c, d, s->size, s->ndim);
    add_int(c, dim);
    add_bool(c, descending);
    add_scalar(c, rp_bool(variant % 3));
    dim += dim < 0 ? s->ndim ? s->ndim : 1 : 0;
    for (int64_t i = 0; i < x->n; i++) /* ties and, of floats, what has no order */
        if (noise(i, 3) % 4 == 0) x->v[i] = ref_is_float(d) && noise(i, 4) % 2 ? NAN : 1;
    settle(c, x);
    ref_value *values = op->flags ? NULL : output(c, d, x->size, x->ndim), *at = output(c, RP_I64, x->size, x->ndim);
    int64_t inner = s->ndim ? stride_of(x, dim) : 1, row = s->ndim ? s->size[dim] : 1;
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t k = i / inner % row, first = i - k * inner;
        const double v = x->v[i];
        int64_t to = k; /* those before are in order: i goes before all that are behind it */
        for (; to > 0; to--) {
            const double u = x->v[first + (int64_t)at->v[first + (to - 1) * inner] * inner];
            if (descending ? !(isnan(v) ? !isnan(u) : v > u) : !(isnan(u) ? !isnan(v) : v < u)) break;
            at->v[first + to * inner] = at->v[first + (to - 1) * inner];
        }
        at->v[first + to * inner] = (double)k;
    }
    for (int64_t i = 0; values && i < x->n; i++) {
        const int64_t first = i - i / inner % row * inner;
        values->v[i] = x->v[first + (int64_t)at->v[i] * inner];
    }
    c->exact = true;
    return true;
}

static bool nonzero_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES) return false;
    ref_value *x = input(c, d, shapes[variant].size, shapes[variant].ndim);
    for (int64_t i = 0; i < x->n; i++) x->v[i] = noise(i, 5) % 3 == 0 ? 0 : x->v[i];
    settle(c, x);
    int64_t size[] = {0, x->ndim};
    for (int64_t i = 0; i < x->n; i++) size[0] += x->v[i] != 0;
    ref_value *y = output(c, RP_I64, size, 2);
    for (int64_t i = 0, o = 0; i < x->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(x, i, at);
        for (int k = 0; k < x->ndim && x->v[i] != 0; k++) y->v[o++] = (double)at[k];
    }
    (void)op;
    c->exact = true;
    return true;
}

static const ref_op ops[] = {
    {"cat", cat_op, .flags = 0},
    {"gather", gather_op, .flags = 0},
    {"embedding", embedding_op, .flags = 0},
    {"embedding_backward", embedding_backward_op, .flags = 0},
    {"scatter_add", scatter_add_op, .flags = 0},
    {"topk", topk_op, .flags = 0},
    {"sort", sort_op, .flags = 0},
    {"argsort", sort_op, .flags = 1},
    {"nonzero", nonzero_op, .flags = 0},
};

const ref_family ref_index = {ops, sizeof ops / sizeof *ops};
