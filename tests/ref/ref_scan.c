/* Reference of scans. */
#include "ref/ref_case.h"

static bool cumulative(const ref_op *op, rp_dtype d, int variant, ref_case *c) {
    static const int cases[][2] = {{0, 1}, {0, 0}, {1, -1}, {3, 0},  {4, 0}, {5, 1}, {5, 0},
                                   {6, 1}, {6, 2}, {8, 9},  {9, -1}, {9, 0}, {2, 0}};
    const bool reversed = op->flags;
    if (variant >= 13 || (reversed && !ref_is_float(d))) return false;
    const shape *s = &shapes[cases[variant][0]];
    int dim = cases[variant][1] < 0 ? cases[variant][1] + (s->ndim ? s->ndim : 1) : cases[variant][1];
    ref_value *x = input(c, d, s->size, s->ndim);
    add_int(c, cases[variant][1]);
    if (!reversed) add_dtype(c, RP_DTYPE_NONE);
    ref_value *y = output(c, ref_is_float(d) ? d : RP_I64, x->size, x->ndim);
    with_mag(y);
    int64_t inner = s->ndim ? stride_of(x, dim) : 1, row = s->ndim ? s->size[dim] : 1;
    for (int64_t i = 0; i < x->n; i++) {
        int64_t at = i / inner % row, first = i - at * inner;
        for (int64_t k = reversed ? at : 0; k < (reversed ? row : at + 1); k++) {
            y->v[i] += x->v[first + k * inner];
            y->mag[i] += fabs(x->v[first + k * inner]);
        }
        y->v[i] = ref_round(y->dtype, y->v[i]);
    }
    c->exact = !ref_is_float(d);
    c->ulps = 8;
    return true;
}

static const ref_op ops[] = {
    {"cumsum", cumulative, .flags = 0},
    {"cumsum_reversed", cumulative, .flags = 1},
};

const ref_family ref_scan = {ops, sizeof ops / sizeof *ops};
