/* Reference of views: coordinates of the result name an element of the input. */
#include "ref/ref_case.h"

static void take(ref_case *c, const int64_t *size, int ndim,
                 int64_t (*from)(const ref_value *x, const int64_t *at, const int64_t *arg), const int64_t *arg) {
    ref_value *y = output(c, c->in[0].dtype, size, ndim);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(y, i, at);
        y->v[i] = c->in[0].v[from ? from(&c->in[0], at, arg) : i];
    }
    c->exact = true;
}

static bool same_order(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int shape, n;
        int64_t size[4], result[4];
    } cases[] = {{6, 2, {6, 5}, {6, 5}}, {6, 2, {-1, 5}, {6, 5}}, {6, 4, {2, 3, 1, 5}, {2, 3, 1, 5}},
                 {1, 2, {1, 1}, {1, 1}}, {2, 0, {0}, {0}},        {5, 2, {0, 7}, {0, 7}},
                 {8, 2, {4, 6}, {4, 6}}, {3, 1, {-1}, {17}},      {6, 3, {2, 3, 5}, {2, 3, 5}}};
    if (variant >= 9) return false;
    const shape *s = &shapes[cases[variant].shape];
    input(c, d, s->size, s->ndim);
    /* view needs memory in order; reshape copies where it is not */
    if (op->flags && (c->layout != REF_CONTIGUOUS && c->layout != REF_OFFSET)) {
        c->passed_over = true;
        return true;
    }
    add_ints(c, cases[variant].size, (size_t)cases[variant].n);
    take(c, cases[variant].result, cases[variant].n, NULL, NULL);
    return true;
}

static int64_t from_permute(const ref_value *x, const int64_t *at, const int64_t *order) {
    int64_t own[RP_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) own[order[d]] = at[d];
    return ravel(x, own);
}

static bool permute_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t orders[][4] = {{1, 0}, {2, 0, 1}, {0, 1, 2}, {3, 1, 2, 0}, {0}};
    static const int which[] = {0, 6, 6, 7, 1};
    if (variant >= 5) return false;
    const shape *s = &shapes[which[variant]];
    ref_value *x = input(c, d, s->size, s->ndim);
    int64_t size[RP_MAX_DIMS], given[RP_MAX_DIMS];
    for (int k = 0; k < s->ndim; k++) {
        size[k] = x->size[orders[variant][k]];
        given[k] = k % 2 ? orders[variant][k] - s->ndim : orders[variant][k];
    }
    add_ints(c, given, (size_t)s->ndim);
    take(c, size, s->ndim, from_permute, orders[variant]);
    (void)op;
    return true;
}

static bool transpose_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][3] = {{0, 0, 1}, {6, -1, 0}, {6, 1, 1}, {8, 1, 15}, {1, 0, -1}};
    if (variant >= 5) return false;
    const shape *s = &shapes[cases[variant][0]];
    ref_value *x = input(c, d, s->size, s->ndim);
    int64_t order[RP_MAX_DIMS], size[RP_MAX_DIMS];
    int a = cases[variant][1] < 0 ? cases[variant][1] + s->ndim : cases[variant][1];
    int b = cases[variant][2] < 0 ? cases[variant][2] + s->ndim : cases[variant][2];
    for (int k = 0; k < s->ndim; k++) order[k] = k == a ? b : k == b ? a : k;
    for (int k = 0; k < s->ndim; k++) size[k] = x->size[order[k]];
    add_int(c, cases[variant][1]);
    add_int(c, cases[variant][2]);
    take(c, size, s->ndim, from_permute, order);
    (void)op;
    return true;
}

static int64_t from_expand(const ref_value *x, const int64_t *at, const int64_t *rank) {
    int64_t own[RP_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) own[d] = x->size[d] == 1 ? 0 : at[d + *rank - x->ndim];
    return ravel(x, own);
}

static bool expand_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int n_in;
        int64_t in[3];
        int n;
        int64_t size[4], result[4];
    } cases[] = {{2, {3, 1}, 2, {3, 4}, {3, 4}},   {2, {3, 1}, 3, {2, -1, 4}, {2, 3, 4}},
                 {0, {0}, 2, {2, 2}, {2, 2}},      {1, {1}, 1, {0}, {0}},
                 {2, {3, 1}, 2, {-1, -1}, {3, 1}}, {3, {1, 2, 1}, 4, {5, 4, 2, 3}, {5, 4, 2, 3}}};
    if (variant >= 6) return false;
    input(c, d, cases[variant].in, cases[variant].n_in);
    add_ints(c, cases[variant].size, (size_t)cases[variant].n);
    int64_t rank = cases[variant].n;
    take(c, cases[variant].result, cases[variant].n, from_expand, &rank);
    (void)op;
    return true;
}

static int64_t from_slice(const ref_value *x, const int64_t *at, const int64_t *arg) /* dim, start, step */
{
    int64_t own[RP_MAX_DIMS];
    memcpy(own, at, sizeof own);
    own[arg[0]] = arg[1] + at[arg[0]] * arg[2];
    return ravel(x, own);
}

/* dim, start, end, step as given; start and length as Python's slice.indices gives them */
static const struct slice_case {
    int shape;
    int64_t dim, start, end, step, first, length;
} slices[] = {
    {0, 0, 1, 3, 1, 1, 2},         {0, -1, INT64_MIN, INT64_MIN, 2, 0, 2},
    {0, 1, -3, -1, 1, 1, 2},       {0, 1, 2, 1, 1, 2, 0},
    {6, 2, 1, 100, 3, 1, 2},       {6, 1, -100, 2, 1, 0, 2},
    {3, 0, 5, INT64_MAX, 7, 5, 2}, {5, 0, 0, 1, 1, 0, 1},
    {9, 0, 3, 30, 4, 3, 7},
};

static bool slice_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= (int)(sizeof slices / sizeof *slices)) return false;
    const struct slice_case *k = &slices[variant];
    const shape *s = &shapes[k->shape];
    int dim = (int)(k->dim < 0 ? k->dim + s->ndim : k->dim);
    int64_t part[RP_MAX_DIMS], arg[] = {dim, k->first, k->step};
    memcpy(part, s->size, sizeof part);
    part[dim] = k->length;
    ref_value *x = input(c, d, s->size, s->ndim), *src = op->flags ? input(c, d, part, s->ndim) : NULL;
    add_int(c, k->dim);
    add_int(c, k->start);
    add_int(c, k->end);
    add_int(c, k->step);
    if (!src) {
        take(c, part, s->ndim, from_slice, arg);
        return true;
    }
    ref_value *y = output(c, d, x->size, x->ndim); /* slice_scatter */
    memcpy(y->v, x->v, (size_t)x->n * sizeof *x->v);
    for (int64_t i = 0; i < src->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(src, i, at);
        y->v[from_slice(y, at, arg)] = src->v[i];
    }
    c->exact = true;
    return true;
}

static int64_t from_select(const ref_value *x, const int64_t *at, const int64_t *arg) /* dim, index */
{
    int64_t own[RP_MAX_DIMS];
    for (int d = 0, k = 0; d < x->ndim; d++) own[d] = d == arg[0] ? arg[1] : at[k++];
    return ravel(x, own);
}

static bool select_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][3] = {{0, 0, 1}, {0, -1, -1}, {6, 1, 2}, {3, 0, -17}, {8, 9, 1}, {9, 0, 36}};
    if (variant >= 6) return false;
    const shape *s = &shapes[cases[variant][0]];
    int64_t dim = cases[variant][1] < 0 ? cases[variant][1] + s->ndim : cases[variant][1], size[RP_MAX_DIMS];
    int64_t index = cases[variant][2] < 0 ? cases[variant][2] + s->size[dim] : cases[variant][2], arg[] = {dim, index};
    for (int k = 0, n = 0; k < s->ndim; k++) {
        if (k != dim) size[n++] = s->size[k];
    }
    ref_value *x = input(c, d, s->size, s->ndim), *src = op->flags ? input(c, d, size, s->ndim - 1) : NULL;
    add_int(c, cases[variant][1]);
    add_int(c, cases[variant][2]);
    if (!src) {
        take(c, size, s->ndim - 1, from_select, arg);
        return true;
    }
    ref_value *y = output(c, d, x->size, x->ndim); /* select_scatter */
    memcpy(y->v, x->v, (size_t)x->n * sizeof *x->v);
    for (int64_t i = 0; i < src->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(src, i, at);
        y->v[from_select(y, at, arg)] = src->v[i];
    }
    c->exact = true;
    return true;
}

static bool squeeze_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][2] = {{7, 1}, {7, 0}, {1, 0}, {2, -1}, {6, -3}};
    if (variant >= 5) return false;
    const shape *s = &shapes[cases[variant][0]];
    int rank = op->flags ? s->ndim + 1 : s->ndim ? s->ndim : 1;
    int dim = cases[variant][1] < 0 ? cases[variant][1] + rank : cases[variant][1], n = 0;
    int64_t size[RP_MAX_DIMS];
    for (int k = 0; k < s->ndim + (op->flags ? 1 : 0); k++) {
        if (op->flags)
            size[n++] = k == dim ? 1 : s->size[k - (k > dim)];
        else if (k != dim || s->size[k] != 1)
            size[n++] = s->size[k];
    }
    input(c, d, s->size, s->ndim);
    add_int(c, cases[variant][1]);
    take(c, size, n, NULL, NULL);
    return true;
}

static bool identity(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    if (variant >= SHAPES) return false;
    input(c, d, shapes[variant].size, shapes[variant].ndim);
    take(c, shapes[variant].size, shapes[variant].ndim, NULL, NULL);
    (void)op;
    return true;
}

static bool flatten_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int shape, start, end, n;
        int64_t result[4];
    } cases[] = {{6, 0, -1, 1, {30}}, {6, 1, 2, 2, {2, 15}}, {6, 0, 1, 2, {6, 5}}, {6, -1, 2, 3, {2, 3, 5}},
                 {3, 0, 0, 1, {17}},  {2, 0, -1, 1, {1}},    {5, 0, -1, 1, {0}}};
    if (variant >= 7) return false;
    const shape *s = &shapes[cases[variant].shape];
    input(c, d, s->size, s->ndim);
    add_int(c, cases[variant].start);
    add_int(c, cases[variant].end);
    take(c, cases[variant].result, cases[variant].n, NULL, NULL);
    (void)op;
    return true;
}

static bool unflatten_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int shape, dim, n, n_result;
        int64_t sizes[3], result[5];
    } cases[] = {{6, 0, 2, 4, {2, 1}, {2, 1, 3, 5}},
                 {6, -1, 2, 4, {-1, 5}, {2, 3, 1, 5}},
                 {6, 1, 1, 3, {-1}, {2, 3, 5}},
                 {3, 0, 3, 3, {1, 17, -1}, {1, 17, 1}}};
    if (variant >= 4) return false;
    const shape *s = &shapes[cases[variant].shape];
    input(c, d, s->size, s->ndim);
    add_int(c, cases[variant].dim);
    add_ints(c, cases[variant].sizes, (size_t)cases[variant].n);
    take(c, cases[variant].result, cases[variant].n_result, NULL, NULL);
    (void)op;
    return true;
}

static bool narrow_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t cases[][4] = {{0, 0, 1, 2}, {6, -1, -4, 3}, {3, 0, 17, 0}, {9, 1, 5, 36}};
    if (variant >= 4) return false;
    const int64_t *k = cases[variant];
    const shape *s = &shapes[k[0]];
    const int64_t dim = k[1] < 0 ? k[1] + s->ndim : k[1];
    int64_t part[RP_MAX_DIMS], arg[] = {dim, k[2] < 0 ? k[2] + s->size[dim] : k[2], 1};
    memcpy(part, s->size, sizeof part);
    part[dim] = k[3];
    input(c, d, s->size, s->ndim);
    for (int i = 1; i < 4; i++) add_int(c, k[i]);
    take(c, part, s->ndim, from_slice, arg);
    (void)op;
    return true;
}

static bool squeeze_dims_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int shape, n;
        int64_t dims[3];
    } cases[] = {{7, 1, {1}}, {7, 2, {-3, 0}}, {8, 3, {0, 2, 4}}, {1, 1, {0}}, {2, 1, {0}}};
    if (variant >= 5) return false;
    const shape *s = &shapes[cases[variant].shape];
    int64_t size[RP_MAX_DIMS];
    int n = 0;
    for (int k = 0; k < s->ndim; k++) {
        bool named = false;
        for (int i = 0; i < cases[variant].n; i++) named = named || (cases[variant].dims[i] + s->ndim) % s->ndim == k;
        if (!named || s->size[k] != 1) size[n++] = s->size[k];
    }
    input(c, d, s->size, s->ndim);
    add_ints(c, cases[variant].dims, (size_t)cases[variant].n);
    take(c, size, n, NULL, NULL);
    (void)op;
    return true;
}

static bool movedim_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const struct {
        int shape, n;
        int64_t source[3], destination[3], order[4];
    } cases[] = {{0, 1, {0}, {1}, {1, 0}},
                 {6, 1, {-1}, {0}, {2, 0, 1}},
                 {6, 2, {0, 1}, {1, 2}, {2, 0, 1}},
                 {7, 2, {3, 0}, {0, -1}, {3, 1, 2, 0}},
                 {6, 0, {0}, {0}, {0, 1, 2}}};
    if (variant >= 5) return false;
    const shape *s = &shapes[cases[variant].shape];
    int64_t size[RP_MAX_DIMS];
    for (int k = 0; k < s->ndim; k++) size[k] = s->size[cases[variant].order[k]];
    input(c, d, s->size, s->ndim);
    add_ints(c, cases[variant].source, (size_t)cases[variant].n);
    add_ints(c, cases[variant].destination, (size_t)cases[variant].n);
    take(c, size, s->ndim, from_permute, cases[variant].order);
    (void)op;
    return true;
}

/* The scatter forms: self, but src at the places of the view. */
static void put(ref_case *c, const ref_value *x, const ref_value *src,
                int64_t (*from)(const ref_value *x, const int64_t *at, const int64_t *arg), const int64_t *arg) {
    ref_value *y = output(c, x->dtype, x->size, x->ndim);
    memcpy(y->v, x->v, (size_t)x->n * sizeof *x->v);
    for (int64_t i = 0; i < src->n; i++) {
        int64_t at[RP_MAX_DIMS];
        unravel(src, i, at);
        y->v[from(y, at, arg)] = src->v[i];
    }
    c->exact = true;
}

static int64_t from_diagonal(const ref_value *x, const int64_t *at, const int64_t *arg) /* dim1, dim2, offset */
{
    int64_t own[RP_MAX_DIMS], along = at[x->ndim - 2];
    for (int d = 0, k = 0; d < x->ndim; d++)
        if (d != arg[0] && d != arg[1]) own[d] = at[k++];
    own[arg[0]] = along + (arg[2] < 0 ? -arg[2] : 0);
    own[arg[1]] = along + (arg[2] > 0 ? arg[2] : 0);
    return ravel(x, own);
}

static bool diagonal_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    /* shape, offset, dim1, dim2, elements of the diagonal */
    static const int64_t cases[][5] = {{0, 0, 0, 1, 3},   {0, 2, 0, -1, 2}, {0, -1, 0, 1, 2}, {6, 1, 2, 0, 1},
                                       {6, -2, -1, 1, 3}, {9, 7, 1, 0, 30}, {0, 9, 0, 1, 0},  {5, 0, 0, 1, 0}};
    if (variant >= 8) return false;
    const int64_t *k = cases[variant];
    const shape *s = &shapes[k[0]];
    const int64_t arg[] = {k[2] < 0 ? k[2] + s->ndim : k[2], k[3] < 0 ? k[3] + s->ndim : k[3], k[1]};
    int64_t size[RP_MAX_DIMS];
    int n = 0;
    for (int p = 0; p < s->ndim; p++)
        if (p != arg[0] && p != arg[1]) size[n++] = s->size[p];
    size[n++] = k[4];
    ref_value *x = input(c, d, s->size, s->ndim), *src = op->flags ? input(c, d, size, n) : NULL;
    for (int i = 1; i < 4; i++) add_int(c, k[i]);
    if (src)
        put(c, x, src, from_diagonal, arg);
    else
        take(c, size, n, from_diagonal, arg);
    return true;
}

static int64_t from_unfold(const ref_value *x, const int64_t *at, const int64_t *arg) /* dim, step */
{
    int64_t own[RP_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) own[d] = d == arg[0] ? at[d] * arg[1] + at[x->ndim] : at[d];
    return ravel(x, own);
}

enum { UNFOLD, UNFOLD_SCATTER, UNFOLD_BACKWARD };
static bool unfold_op(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int64_t cases[][4] = {{3, 0, 4, 4}, {6, -1, 2, 3}, {9, 0, 1, 5}, {5, 2, 3, 3},
                                       {3, 0, 4, 1}, {6, -2, 3, 1}, {9, 1, 7, 3}}; /* the last reach into each other */
    if (variant >= (op->flags == UNFOLD_SCATTER ? 4 : 7)) return false;
    const int64_t *k = cases[variant];
    const shape *s = &shapes[k[0]];
    const int64_t arg[] = {k[1] < 0 ? k[1] + s->ndim : k[1], k[3]};
    int64_t size[RP_MAX_DIMS];
    memcpy(size, s->size, sizeof size);
    size[arg[0]] = (s->size[arg[0]] - k[2]) / k[3] + 1;
    size[s->ndim] = k[2];
    ref_value *x = op->flags == UNFOLD_BACKWARD ? NULL : input(c, d, s->size, s->ndim);
    ref_value *src = op->flags == UNFOLD ? NULL : input(c, d, size, s->ndim + 1);
    if (op->flags == UNFOLD_BACKWARD) add_ints(c, s->size, (size_t)s->ndim);
    for (int i = 1; i < 4; i++) add_int(c, k[i]);
    if (op->flags == UNFOLD) {
        take(c, size, s->ndim + 1, from_unfold, arg);
    } else if (op->flags == UNFOLD_SCATTER) {
        put(c, x, src, from_unfold, arg);
    } else {
        ref_value *y = output(c, d, s->size, s->ndim);
        for (int64_t i = 0; i < src->n; i++) {
            int64_t at[RP_MAX_DIMS];
            unravel(src, i, at);
            double *place = &y->v[from_unfold(y, at, arg)];
            const double sum = *place + src->v[i];
            *place = d == RP_BOOL ? sum != 0 : ref_is_float(d) ? sum : ref_round(d, sum);
        }
    }
    return true;
}

static const ref_op ops[] = {
    {"narrow", narrow_op, .flags = 0},
    {"squeeze_dims", squeeze_dims_op, .flags = 0},
    {"movedim", movedim_op, .flags = 0},
    {"diagonal", diagonal_op, .flags = 0},
    {"diagonal_scatter", diagonal_op, .flags = 1},
    {"unfold", unfold_op, .flags = UNFOLD},
    {"unfold_scatter", unfold_op, .flags = UNFOLD_SCATTER},
    {"unfold_backward", unfold_op, .flags = UNFOLD_BACKWARD},
    {"flatten", flatten_op, .flags = 0},
    {"unflatten", unflatten_op, .flags = 0},
    {"view", same_order, .flags = 1},
    {"reshape", same_order, .flags = 0},
    {"permute", permute_op, .flags = 0},
    {"transpose", transpose_op, .flags = 0},
    {"swapaxes", transpose_op, .flags = 0},
    {"expand", expand_op, .flags = 0},
    {"slice", slice_op, .flags = 0},
    {"select", select_op, .flags = 0},
    {"unsqueeze", squeeze_op, .flags = 1},
    {"squeeze", squeeze_op, .flags = 0},
    {"detach", identity, .flags = 0},
    {"slice_scatter", slice_op, .flags = 1},
    {"select_scatter", select_op, .flags = 1},
};

const ref_family ref_view = {ops, sizeof ops / sizeof *ops};
