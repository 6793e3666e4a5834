/* The order of dims of a space of points (points.h). Axes come in the order of the DAG, so that the last dim of a space need not be the one
   that lies closest in memory: columns before rows, where what depends on rows alone is an axis of its own (triangles, flips, windows). */
#include <string.h>

#include "kernel/cpu/points.h"

static int64_t distance(int64_t stride) { return stride < 0 ? -stride : stride; }
/* Should dim x come inside dim y > x? */
static bool inside(const rp__dag *dag, const rp__space *s, unsigned x, unsigned y) {
    for (int turn = 0; turn < 4; turn++) {
        for (unsigned a = 0; a < s->n_accesses; a++) {
            const unsigned kind = dag->accesses[a].kind;
            if (kind == RP__ACCESS_IOTA || (kind != RP__ACCESS_READ) != !(turn & 1) ||
                rp__dag_is_row(dag, dag->accesses[a].axes) != turn / 2)
                continue;
            const int64_t i = distance(s->accesses[a].stride[x]), j = distance(s->accesses[a].stride[y]);
            if (i == j || i == 0 || j == 0) continue;
            return i < j;
        }
    }
    return false;
}
static void swap(int64_t *x, int64_t *y) {
    const int64_t t = *x;
    *x = *y;
    *y = t;
}
static void swap_dims(const rp__dag *dag, rp__points *p, unsigned x, unsigned y) {
    swap(&p->space.extent[x], &p->space.extent[y]);
    for (unsigned a = 0; a < p->space.n_accesses; a++) swap(&p->accesses[a].stride[x], &p->accesses[a].stride[y]);
    for (unsigned k = 0; k < dag->n_windows; k++) swap(&p->windows[k].factor[x], &p->windows[k].factor[y]);
}
static bool one_line(const rp__dag *dag, const rp__points *p, unsigned d) {
    const int64_t n = p->space.extent[d + 1];
    for (unsigned a = 0; a < p->space.n_accesses; a++) {
        if (p->accesses[a].stride[d] != p->accesses[a].stride[d + 1] * n) return false;
    }
    for (unsigned k = 0; k < dag->n_windows; k++) {
        if (p->windows[k].factor[d] != p->windows[k].factor[d + 1] * n) return false;
    }
    return true;
}
/* Dim d + 1 goes into dim d. */
static void merge(const rp__dag *dag, rp__points *p, unsigned d, unsigned dims) {
    const size_t after = (dims - d - 1) * sizeof(int64_t);
    p->space.extent[d + 1] *= p->space.extent[d];
    memmove(&p->space.extent[d], &p->space.extent[d + 1], after);
    for (unsigned a = 0; a < p->space.n_accesses; a++)
        memmove(&p->accesses[a].stride[d], &p->accesses[a].stride[d + 1], after);
    for (unsigned k = 0; k < dag->n_windows; k++)
        memmove(&p->windows[k].factor[d], &p->windows[k].factor[d + 1], after);
}

const rp__space *rp__points_in_order(const rp__dag *dag, const rp__space *space, rp__points *out) {
    unsigned dims = rp__space_dims(space), outer = dag->inner ? rp__space_outer(dag, space) : dims;
    bool wanted = false;
    for (unsigned d = 1; d < outer && !wanted; d++) wanted = inside(dag, space, d - 1, d);
    if (!wanted || space->n_accesses > RP__DAG_MAX_ACCESSES) return NULL;
    out->space = *space;
    memcpy(out->accesses, space->accesses, space->n_accesses * sizeof *out->accesses);
    if (dag->n_windows) memcpy(out->windows, space->windows, dag->n_windows * sizeof *out->windows);
    out->space.accesses = out->accesses;
    out->space.windows = out->windows;
    for (unsigned i = 1; i < outer; i++) {
        for (unsigned j = i; j > 0 && inside(dag, &out->space, j - 1, j); j--) swap_dims(dag, out, j - 1, j);
    }
    for (unsigned d = outer - 1; d-- > 0;) {
        if (!one_line(dag, out, d)) continue;
        merge(dag, out, d, dims--);
        outer--;
    }
    for (unsigned x = 0; x < RP__DAG_MAX_AXES; x++) {
        if (!(dag->inner >> x & 1u)) out->space.dims[x] = 0;
    }
    out->space.dims[0] = (uint8_t)outer;
    return &out->space;
}
