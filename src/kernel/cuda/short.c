/* When a thread does a whole reduction, and how many that lie side by side (emit_short.c): windows of pools, sums over a dim of a few
 * elements that is not the contiguous one. A warp a row would compute places for lanes that have no element; a thread has the places of
 * all elements at the cost of one, and its loads are in flight together. Chosen by extents and by where elements lie, never by an op. */
#include <string.h>

#include "kernel/cuda/short.h"
#include "tensor/tensor.h"

enum {
    MOST = 64,      /* elements of a row */
    FEW = 32,       /* of one that lies in lines */
    WORDS = 72,     /* registers for elements that are loaded in vectors */
    TEXT = 6000,    /* nodes of the unrolled text */
    BYTES = 32,     /* of a vector */
    NEAR = 8,       /* bytes between what two threads read of a window, where it is read element by element */
    NEAR_PART = 16, /* the same where a window divides, so that most of them read nothing */
    THREADS = 512   /* a multiprocessor */
};

static int64_t product(const int64_t *extent, unsigned n) {
    int64_t p = 1;
    for (unsigned d = 0; d < n; d++) p *= extent[d];
    return p;
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

static bool is_element(const rp__dag *dag, unsigned k) { return !rp__dag_is_row(dag, dag->accesses[k].axes); }

static bool moves_in_memory(const rp__dag *dag, unsigned k) { return dag->accesses[k].kind != RP__ACCESS_IOTA; }

static unsigned first_window(const rp__dag *dag, unsigned access) {
    unsigned first = 0;
    for (unsigned k = 0; k < access; k++) first += dag->accesses[k].windows;
    return first;
}

/* Does a window of the access move along dim d? */
static bool slides(const rp__dag *dag, const rp__space *s, unsigned access, unsigned d) {
    const unsigned first = first_window(dag, access);
    for (unsigned k = first; k < first + dag->accesses[access].windows; k++)
        if (s->windows[k].factor[d] != 0) return true;
    return false;
}

/* ---- which dim threads run along ---- */

/* Bytes a row that neighbours along dim d have next to each other. */
static int64_t bytes_along(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned d,
                           int64_t elements) {
    int64_t bytes = 0;
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        bool near = a[k].stride[d] == 1;
        const unsigned first = first_window(dag, k);
        for (unsigned w = first; w < first + dag->accesses[k].windows; w++)
            near = near || (s->windows[w].factor[d] != 0 && magnitude(s->windows[w].stride) == 1);
        if (near && moves_in_memory(dag, k))
            bytes += (int64_t)rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype) * (is_element(dag, k) ? elements : 1);
    }
    return bytes;
}

static unsigned fastest(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned n_outer,
                        int64_t elements) {
    unsigned best = n_outer - 1;
    for (unsigned d = n_outer - 1; d-- > 0;)
        if (bytes_along(dag, s, a, d, elements) > bytes_along(dag, s, a, best, elements)) best = d;
    return best;
}

/* ---- is it worth it? ---- */

/* Loads whose places are computed for each element: nobody knows which of them lie together. */
static bool computes_places(const rp__dag *dag) {
    for (unsigned k = 0; k < dag->n_nodes; k++) {
        const rp__node *n = &dag->nodes[k];
        if (n->op == RP__LOAD && n->a != RP__NO_VAL && !rp__dag_is_row(dag, dag->nodes[n->a].axes)) return true;
    }
    return false;
}

/* Do most of the bytes of elements lie along dim d rather than along rows? */
static bool lies_along(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned d, unsigned inner) {
    int64_t along = 0, within = 0;
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        if (!moves_in_memory(dag, k) || !is_element(dag, k)) continue;
        const int64_t bytes = (int64_t)rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype);
        if (a[k].stride[d] == 1)
            along += bytes;
        else if (rp__space_step(dag, s, a, k, inner) == 1)
            within += bytes;
    }
    return along > within;
}

static bool is_worth_it(const rp__device *d, const rp__dag *dag, const rp__space *s, const rp__space_access *a,
                        const rp__cuda_class *c, unsigned fast) {
    const int64_t r = product(s->extent + c->n_outer, c->n_inner), rows = product(s->extent, c->n_outer);
    if (dag->n_windows || computes_places(dag)) return true;
    /* what lies in lines: a thread a row, where rows are neighbours and enough of them */
    return r > 1 && r <= FEW && rows >= (int64_t)THREADS * d->multiprocessors &&
           lies_along(dag, s, a, fast, c->n_outer + c->n_inner - 1u);
}

static bool is_possible(const rp__dag *dag, const rp__space *s, const rp__cuda_class *c) {
    const int64_t r = product(s->extent + c->n_outer, c->n_inner);
    if (dag->scans || dag->n_phases < 2 || c->n_outer == 0 || c->n_inner == 0 || c->n_inner > 3 || r < 1 || r > MOST ||
        r * dag->n_nodes > TEXT)
        return false;
    for (unsigned k = 0; k < dag->n_stores; k++)
        if (!rp__dag_is_row(dag, dag->stores[k].axes)) return false;
    return true;
}

/* ---- how many rows a thread has ---- */

/* Vectors along the last outer dim, of an access whose windows do not move along it: where they are is a whole number of vectors. */
static bool is_unit(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned k, unsigned fast,
                    unsigned width) {
    const unsigned first = first_window(dag, k);
    for (unsigned w = first; w < first + dag->accesses[k].windows; w++)
        if (s->windows[w].stride % (int64_t)width) return false;
    return !slides(dag, s, k, fast) && rp__cuda_is_unit(dag, s, a, k, fast, width);
}

/* Bytes from what one row reads of an access to what the next one does, at most: 0 where they share it. */
static int64_t distance(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned k, unsigned fast,
                        bool *divides) {
    int64_t step = magnitude(a[k].stride[fast]);
    const unsigned first = first_window(dag, k);
    *divides = false;
    for (unsigned w = first; w < first + dag->accesses[k].windows; w++) {
        const rp__space_window *x = &s->windows[w];
        if (x->factor[fast] == 0) continue;
        *divides = *divides || x->divisor > 1;
        step += (magnitude(x->factor[fast]) * magnitude(x->stride) + x->divisor - 1) / x->divisor;
    }
    return step * (int64_t)rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype);
}

/* Elements of a row that windows which divide leave, about. */
static int64_t elements_left(const rp__dag *dag, const rp__space *s, const rp__cuda_class *c) {
    int64_t left = 1;
    for (unsigned d = c->n_outer; d < (unsigned)c->n_outer + c->n_inner; d++) {
        int64_t by = 1;
        for (unsigned k = 0; k < dag->n_windows; k++)
            if (s->windows[k].factor[d] != 0 && s->windows[k].divisor > by) by = s->windows[k].divisor;
        left *= (s->extent[d] + by - 1) / by;
    }
    return left;
}

/* Fills what depends on the vector. False: rows do not go together so. */
static bool set_vector(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned vector,
                       rp__cuda_class *c) {
    const unsigned fast = c->n_outer - 1u;
    const int64_t r = product(s->extent + c->n_outer, c->n_inner), left = elements_left(dag, s, c);
    int64_t words = 0;
    c->vector = (uint8_t)vector;
    c->unit = c->gathered = 0;
    if (vector == 1) return true;
    if (s->extent[fast] % vector || r * dag->n_nodes * vector > TEXT) return false;
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        const int64_t bytes = (int64_t)rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype) * vector;
        const bool element = is_element(dag, k), written = dag->accesses[k].kind != RP__ACCESS_READ;
        if (!moves_in_memory(dag, k) || (c->staged_unit >> k & 1)) continue;
        if ((element || written) && is_unit(dag, s, a, k, fast, vector)) {
            if (bytes > BYTES) return false;
            c->unit |= UINT64_C(1) << k;
            words += element ? left * (bytes + 3) / 4 : 0;
            continue;
        }
        bool divides = false;
        if (written || distance(dag, s, a, k, fast, &divides) * (int64_t)vector > (divides ? NEAR_PART : NEAR))
            return false;
    }
    if (words > WORDS) return false;
    c->gathered = rp__cuda_find_gathered(dag, s, a, fast, c);
    for (unsigned k = 0; k < dag->n_nodes; k++) { /* a place a row would be lines apart */
        const rp__node *n = &dag->nodes[k];
        if (n->op == RP__LOAD && n->a != RP__NO_VAL && !(c->gathered >> n->access & 1)) return false;
    }
    return true;
}

/* ---- constants of windows ---- */

static bool is_small(int64_t x) { return x >= -127 && x <= 127; }

static rp__cuda_window constants(const rp__space_window *w, const rp__cuda_class *c) {
    rp__cuda_window x;
    unsigned outer = 0, n = 0;
    memset(&x, 0, sizeof x);
    for (unsigned d = 0; d < c->n_outer; d++)
        if (w->factor[d] != 0) outer = d, n++;
    bool known = n <= 1 && is_small(w->divisor) && w->divisor > 0 && is_small(w->pad) && is_small(w->factor[outer]);
    for (unsigned d = 0; d < c->n_inner; d++) known = known && is_small(w->factor[c->n_outer + d]);
    if (!known) return x;
    x.known = 1;
    x.divisor = (int8_t)w->divisor;
    x.pad = (int8_t)w->pad;
    x.outer = (uint8_t)outer;
    x.factor = (int8_t)w->factor[outer];
    for (unsigned d = 0; d < c->n_inner; d++) x.inner[d] = (int8_t)w->factor[c->n_outer + d];
    return x;
}

static bool are_alike(const rp__space_window *a, const rp__space_window *b, unsigned dims) {
    return a->size == b->size && a->pad == b->pad && a->divisor == b->divisor &&
           memcmp(a->factor, b->factor, dims * sizeof *a->factor) == 0;
}

static void set_windows(const rp__dag *dag, const rp__space *s, rp__cuda_class *c) {
    for (unsigned k = 0; k < dag->n_windows; k++) {
        c->windows[k] = constants(&s->windows[k], c);
        while (c->windows[k].like < k &&
               !are_alike(&s->windows[c->windows[k].like], &s->windows[k], (unsigned)c->n_outer + c->n_inner))
            c->windows[k].like++;
    }
}

static void set_layout(const rp__dag *dag, const rp__space *s, const rp__space_access *a, rp__cuda_class *c) {
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        const uint64_t bit = UINT64_C(1) << k;
        bool moved = false, slid = false;
        for (unsigned d = c->n_outer; d < (unsigned)c->n_outer + c->n_inner; d++) {
            moved = moved || a[k].stride[d] != 0;
            slid = slid || slides(dag, s, k, d);
        }
        if (!moved) c->unmoved |= bit;
        if (!moved && !slid) c->broadcast |= bit;
        if (a[k].stride[c->n_outer - 1] == 0 && !slides(dag, s, k, c->n_outer - 1u)) c->staged_unit |= bit;
    }
    for (unsigned d = 0; d < c->n_inner; d++) c->extent[d] = (uint8_t)s->extent[c->n_outer + d];
}

bool rp__cuda_short(const rp__device *d, const rp__dag *dag, rp__space *s, rp__space_access *a, rp__cuda_class *c) {
    const rp__schedule *how = s->how;
    if (!is_possible(dag, s, c) || (how && how->flat)) return false;
    const unsigned fast = fastest(dag, s, a, c->n_outer, product(s->extent + c->n_outer, c->n_inner));
    if (!is_worth_it(d, dag, s, a, c, fast) && !(how && how->path == 1 + RP__CUDA_SHORT)) return false;
    rp__cuda_move_dim(dag, s, a, fast, c->n_outer - 1u);
    const int64_t rows = product(s->extent, c->n_outer);
    c->template_ = RP__CUDA_SHORT;
    c->parts = 1;
    set_layout(dag, s, a, c);
    set_windows(dag, s, c);
    unsigned vector = RP__CUDA_MAX_VECTOR >> (how ? how->narrow & 3u : 0);
    while (vector > 1 && rows < (int64_t)vector * THREADS * d->multiprocessors) vector /= 2;
    while (!set_vector(dag, s, a, vector, c)) vector /= 2;
    return true;
}
