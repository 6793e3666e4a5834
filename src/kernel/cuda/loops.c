/* The CUDA backend of the loop form: chooses a class for (DAG, space), gets its kernel, fills a launch. Texts are emit.c's;
 * compiling and loading are nvrtc.c's. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "device/cuda/cuda.h"
#include "kernel/cuda/contract.h"
#include "kernel/cuda/emit.h"
#include "kernel/cuda/nvrtc.h"
#include "kernel/cuda/ranges.h"
#include "kernel/cuda/short.h"
#include "kernel/relax.h"
#include "tensor/tensor.h"

/* dag->backend[RP_DEVICE_CUDA]: the kernels made of it so far. Few, so a list; grown under the lock, read without. */
typedef struct variant {
    struct variant *next;
    const rp__device *device;
    rp__cuda_class class_;
    rp__kernel *kernel;
} variant;

static rp__mutex lock = RP__MUTEX_INIT;

static variant *find(const rp__dag *dag, const rp__device *d, const rp__cuda_class *c) {
    for (variant *v = dag->backend[RP_DEVICE_CUDA]; v; v = v->next)
        if (v->device == d && memcmp(&v->class_, c, sizeof *c) == 0) return v;
    return NULL;
}

static const char *template_name(unsigned t) {
    static const char *const names[] = {[RP__CUDA_POINTWISE] = "pointwise",
                                        [RP__CUDA_TILE] = "tile",
                                        [RP__CUDA_ROW] = "row",
                                        [RP__CUDA_SHORT] = "short",
                                        [RP__CUDA_CLUSTER] = "cluster",
                                        [RP__CUDA_ROW_LOOP] = "row_loop",
                                        [RP__CUDA_COLUMN] = "column",
                                        [RP__CUDA_CLUSTER_COLUMN] = "cluster_column",
                                        [RP__CUDA_PARTIAL_ROW] = "partial_row",
                                        [RP__CUDA_PARTIAL_COLUMN] = "partial_column",
                                        [RP__CUDA_SCAN] = "scan",
                                        [RP__CUDA_SCAN_TOTALS] = "scan_totals",
                                        [RP__CUDA_SCAN_PARTS] = "scan_parts",
                                        [RP__CUDA_SPLIT] = "split",
                                        [RP__CUDA_SPLIT_COLUMN] = "split_column",
                                        [RP__CUDA_FINISH] = "finish",
                                        [RP__CUDA_MANY] = "many",
                                        [RP__CUDA_CONTRACT] = "contract"};
    return names[t];
}

static rp_status add_source(const rp__dag *dag, const rp__cuda_class *c, char name[64], rp__text *out) {
    rp__hash key = rp__hash_bytes(c, sizeof *c, dag->key);
    const bool product = c->template_ == RP__CUDA_CONTRACT;
    (void)snprintf(name, 64, "rp_%s%s%s_%016llx", template_name(c->template_), product ? "_" : "",
                   product ? rp__cuda_contract_row(c) : "", (unsigned long long)key.lo);
    return product ? rp__cuda_contract_emit(dag, c, name, out) : rp__cuda_emit(dag, c, name, out);
}

/* Compiled without the lock: other threads find, and compile, others meanwhile. */
static rp_status make_kernel(rp__device *d, const rp__dag *dag, const rp__cuda_class *c, rp__kernel **out) {
    char name[64];
    rp__text text = {0};
    rp_status status = add_source(dag, c, name, &text);
    if (status == RP_OK) status = rp__nvrtc_kernel(d, text.data, name, RP__KERNEL_CUDA, out);
    rp__text_free(&text);
    return status;
}

static rp_status kernel_of(rp__device *d, rp__dag *dag, const rp__cuda_class *c, rp__kernel **out) {
    rp__lock(&lock);
    const variant *v = find(dag, d, c);
    *out = v ? v->kernel : NULL;
    rp__unlock(&lock);
    if (v) return RP_OK;
    rp__kernel *k = NULL;
    RP_TRY(make_kernel(d, dag, c, &k));
    if (rp__nvrtc_is_pending(k)) { /* the batch holds it */
        rp__kernel_release(k);
        *out = k;
        return RP_OK;
    }
    variant *own = rp__calloc(1, sizeof *own);
    if (!own) {
        rp__kernel_release(k);
        return RP__OOM("a CUDA kernel");
    }
    *own = (variant){.device = d, .class_ = *c, .kernel = k};
    rp__lock(&lock);
    v = find(dag, d, c); /* of a thread that was faster */
    if (!v) {
        own->next = dag->backend[RP_DEVICE_CUDA];
        dag->backend[RP_DEVICE_CUDA] = own;
    }
    *out = v ? v->kernel : k;
    rp__unlock(&lock);
    if (v) {
        rp__kernel_release(k);
        rp__free(own);
    }
    return RP_OK;
}

static void destroy(rp__dag *dag) {
    for (variant *v = dag->backend[RP_DEVICE_CUDA], *next; v; v = next) {
        next = v->next;
        rp__kernel_release(v->kernel);
        rp__free(v);
    }
    dag->backend[RP_DEVICE_CUDA] = NULL;
}

/* ---- classes ---- */

static int64_t product(const int64_t *extent, unsigned n) {
    int64_t p = 1;
    for (unsigned d = 0; d < n; d++) p *= extent[d];
    return p;
}

/* Do offsets or element numbers need 64 bits? */
static bool is_wide(const rp__dag *dag, const rp__space *s, const rp__space_access *a) {
    unsigned n = rp__space_dims(s);
    int64_t limit = INT32_MAX - RP__CUDA_CHUNK; /* blocks begin to count behind the end */
    if (product(s->extent, n) > limit) return true;
    for (unsigned k = 0; k < dag->n_windows; k++) {
        const rp__space_window *w = &s->windows[k];
        int64_t reach = w->pad < 0 ? -w->pad : w->pad, step = w->stride < 0 ? -w->stride : w->stride;
        for (unsigned d = 0; d < n; d++)
            reach += (s->extent[d] - 1) * (w->factor[d] < 0 ? -w->factor[d] : w->factor[d]);
        if (reach > limit || w->size > limit || w->divisor > limit || (step && w->size > limit / 4 / step)) return true;
    }
    for (unsigned k = 0; k < s->n_accesses; k++) {
        int64_t reach = 0;
        for (unsigned d = 0; d < n; d++) {
            int64_t stride = a[k].stride[d] < 0 ? -a[k].stride[d] : a[k].stride[d];
            if (s->extent[d] > 1 && stride > limit / (s->extent[d] - 1)) return true;
            reach += (s->extent[d] - 1) * stride;
            if (reach > limit) return true;
        }
    }
    return false;
}

bool rp__cuda_is_unit(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned k, unsigned fast,
                      unsigned width) {
    unsigned n = rp__space_dims(s);
    if (a[k].stride[fast] != 1) return false;
    if (dag->accesses[k].kind == RP__ACCESS_IOTA) return true;
    uint64_t bytes = rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype) * width;
    uint64_t align = bytes > 16 ? 16 : bytes;
    if ((uint64_t)(uintptr_t)a[k].base % align) return false;
    for (unsigned d = 0; d < n; d++)
        if (d != fast && s->extent[d] > 1 && a[k].stride[d] % (int64_t)width) return false;
    return true;
}

/* The same of an access that no window moves: one that has windows is read element by element. */
static bool is_unit(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned k, unsigned fast,
                    unsigned width) {
    return !dag->accesses[k].windows && rp__cuda_is_unit(dag, s, a, k, fast, width);
}

/* ---- tiles: accesses that disagree about which dim is contiguous ---- */

/* Accesses that every node and store reads and writes at their own place, no computed one: they may go through shared memory. */
static uint64_t plain_accesses(const rp__dag *dag) {
    uint64_t plain = 0;
    for (unsigned k = 0; k < dag->n_accesses; k++)
        if (dag->accesses[k].kind != RP__ACCESS_IOTA && !dag->accesses[k].windows) plain |= UINT64_C(1) << k;
    for (unsigned k = 0; k < dag->n_nodes; k++) {
        const rp__node *n = &dag->nodes[k];
        if (n->op == RP__LOAD && (n->a != RP__NO_VAL || n->b != RP__NO_VAL)) plain &= ~(UINT64_C(1) << n->access);
    }
    for (unsigned k = 0; k < dag->n_stores; k++) {
        const rp__store *s = &dag->stores[k];
        if (s->offset != RP__NO_VAL || s->predicate != RP__NO_VAL || s->mode != RP__STORE_SET)
            plain &= ~(UINT64_C(1) << s->access);
    }
    return plain;
}

static unsigned access_bytes(const rp__dag *dag, unsigned k) {
    return (unsigned)rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype);
}

/* Bytes of what lies along dim d, each element counted once. What is read at computed places is all there. */
static double bytes_along(const rp__dag *dag, const rp__space *s, const rp__space_access *a, uint64_t plain,
                          unsigned d) {
    double bytes = 0;
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        if (dag->accesses[k].kind == RP__ACCESS_IOTA || a[k].stride[d] != 1) continue;
        double own = access_bytes(dag, k);
        for (unsigned x = 0; x < rp__space_dims(s); x++)
            if (a[k].stride[x] != 0 || !(plain >> k & 1)) own *= (double)s->extent[x];
        bytes += own;
    }
    return bytes;
}

void rp__cuda_move_dim(const rp__dag *dag, rp__space *s, rp__space_access *a, unsigned from, unsigned to) {
    for (unsigned d = from; d < to; d++) {
        const int64_t extent = s->extent[d];
        s->extent[d] = s->extent[d + 1];
        s->extent[d + 1] = extent;
        for (unsigned k = 0; k < dag->n_accesses; k++) {
            const int64_t stride = a[k].stride[d];
            a[k].stride[d] = a[k].stride[d + 1];
            a[k].stride[d + 1] = stride;
        }
        for (unsigned k = 0; k < dag->n_windows; k++) {
            int64_t *factor = s->windows[k].factor, f = factor[d];
            factor[d] = factor[d + 1];
            factor[d + 1] = f;
        }
    }
}

/* Points have no order: the dim along which most bytes lie comes last. */
static void order_points(const rp__dag *dag, rp__space *s, rp__space_access *a) {
    const unsigned n = rp__space_dims(s);
    if (n < 2) return;
    const uint64_t plain = plain_accesses(dag);
    unsigned best = n - 1;
    for (unsigned d = n - 1; d-- > 0;)
        if (bytes_along(dag, s, a, plain, d) > bytes_along(dag, s, a, plain, best)) best = d;
    rp__cuda_move_dim(dag, s, a, best, n - 1);
}

/* Places of a tile along a dim of extent n, when those along the other dim are few. */
static unsigned tile_side(int64_t n, unsigned most) {
    unsigned side = 4;
    while (side < most && side < n) side *= 2;
    return side;
}

static unsigned tile_bytes(const rp__dag *dag, const rp__cuda_class *c) {
    unsigned bytes = 0;
    for (unsigned k = 0; k < dag->n_accesses; k++)
        if (c->staged >> k & 1)
            bytes += c->down * rp__cuda_tile_pitch(c->tile, access_bytes(dag, k)) * access_bytes(dag, k);
    return bytes;
}

/* The sides of a tile: a square, or, where one dim is short, longer along the other. False: what is staged does not fit. */
static bool shape_tile(const rp__dag *dag, int64_t across, int64_t along, rp__cuda_class *c) {
    enum { POINTS = 4096, LEAST = 1024, SHARED = 40 << 10 };
    for (unsigned points = POINTS; points >= LEAST; points /= 2) {
        const unsigned square = points == POINTS ? 64 : 32;
        c->down = (uint16_t)tile_side(across, square);
        c->tile = (uint16_t)(points / c->down);
        if (along < square && c->down == square) {
            c->tile = (uint16_t)tile_side(along, square);
            c->down = (uint16_t)(points / c->tile);
        }
        if (tile_bytes(dag, c) <= SHARED) return true;
    }
    return false;
}

/* A tile where what lies along another dim than the last is worth a way through shared memory: each of its elements would be a
 * sector of 32 bytes to itself, unless a cache keeps the others. */
static void classify_tile(const rp__dag *dag, const rp__space *s, const rp__space_access *a, rp__cuda_class *c) {
    enum { FEW = 2048, SMALL = 256 }; /* points of the launch, of a pair of dims */
    const uint64_t plain = plain_accesses(dag);
    const unsigned last = c->n_outer - 1u;
    unsigned across = last, most = 0, widest = 1;
    if (product(s->extent, c->n_outer) < FEW) return;
    for (unsigned d = 0; d < last; d++) {
        unsigned along = 0;
        for (unsigned k = 0; k < dag->n_accesses; k++)
            if ((plain >> k & 1) && a[k].stride[d] == 1 && a[k].stride[last] != 0) along += access_bytes(dag, k);
        if (along == 0 || along < most || s->extent[d] * s->extent[last] < SMALL) continue;
        if (along > most || s->extent[d] > s->extent[across]) across = d;
        most = along;
    }
    if (across == last) return;
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        const int64_t step = a[k].stride[last] < 0 ? -a[k].stride[last] : a[k].stride[last];
        if (!(plain >> k & 1) || a[k].stride[across] != 1 || step <= 1 || step * access_bytes(dag, k) < 8) continue;
        c->staged |= UINT64_C(1) << k;
        if (!shape_tile(dag, s->extent[across], s->extent[last], c)) c->staged &= ~(UINT64_C(1) << k);
    }
    if (!c->staged || !shape_tile(dag, s->extent[across], s->extent[last], c)) {
        c->down = c->tile = 0;
        return;
    }
    c->template_ = RP__CUDA_TILE;
    c->across = (uint8_t)across;
    for (unsigned k = 0; k < dag->n_accesses; k++)
        if ((c->staged >> k & 1) && access_bytes(dag, k) > widest) widest = access_bytes(dag, k);
    c->stage = (uint8_t)(16 / widest > RP__CUDA_MAX_VECTOR ? RP__CUDA_MAX_VECTOR : 16 / widest);
    while (c->stage > 1 && (s->extent[across] % c->stage || c->down % c->stage ||
                            (unsigned)c->down * c->tile / c->stage < RP__CUDA_BLOCK))
        c->stage /= 2;
    for (unsigned k = 0; k < dag->n_accesses && c->stage > 1; k++)
        if ((c->staged >> k & 1) && is_unit(dag, s, a, k, across, c->stage)) c->staged_unit |= UINT64_C(1) << k;
    if (!c->staged_unit) c->stage = 1;
}

/* Is the value the same along dim `fast`? */
static bool is_still_along(const rp__dag *dag, const rp__space_access *a, rp__val v, unsigned fast) {
    const rp__node *n = &dag->nodes[v];
    if (n->op == RP__REDUCE || n->op == RP__SCAN) return false;
    if ((n->op == RP__LOAD || n->op == RP__IOTA || n->op == RP__INSIDE) &&
        (a[n->access].stride[fast] != 0 || dag->accesses[n->access].windows))
        return false;
    return (n->a == RP__NO_VAL || is_still_along(dag, a, n->a, fast)) &&
           (n->b == RP__NO_VAL || is_still_along(dag, a, n->b, fast)) &&
           (n->c == RP__NO_VAL || is_still_along(dag, a, n->c, fast));
}

/* Is the integer a multiple of `width` whatever is loaded? */
static bool is_multiple(const rp__dag *dag, const rp__space *s, rp__val v, unsigned width) {
    const rp__node *n = &dag->nodes[v];
    switch (n->op) {
    case RP__CONST: return n->imm.i % (int64_t)width == 0;
    case RP__SCALAR: {
        int64_t value;
        rp__scalar_store(s->scalars[n->access], RP_I64, &value);
        return value % (int64_t)width == 0;
    }
    case RP__MUL: return is_multiple(dag, s, n->a, width) || is_multiple(dag, s, n->b, width);
    case RP__ADD:
    case RP__SUB: return is_multiple(dag, s, n->a, width) && is_multiple(dag, s, n->b, width);
    default: return false;
    }
}

/* Rows of an embedding are such. */
uint64_t rp__cuda_find_gathered(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned fast,
                                const rp__cuda_class *c) {
    uint64_t gathered = 0, split = 0;
    for (unsigned k = 0; k < dag->n_nodes; k++) {
        const rp__node *n = &dag->nodes[k];
        if (n->op != RP__LOAD || n->a == RP__NO_VAL || !(c->unit >> n->access & 1)) continue;
        const bool whole = n->b == RP__NO_VAL && dag->nodes[n->a].dtype == RP_I64 &&
                           is_still_along(dag, a, n->a, fast) && is_multiple(dag, s, n->a, c->vector);
        *(whole ? &gathered : &split) |= UINT64_C(1) << n->access;
    }
    return gathered & ~split;
}

/* One dim that does not hold whole vectors, of accesses that all run along it: those behind the last vector go one by one. */
static bool has_rest(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned width,
                     const rp__cuda_class *c) {
    if (c->n_outer != 1 || width < 2 || s->extent[0] % width == 0 || s->extent[0] < 256 * (int64_t)width ||
        dag->n_windows || dag->random)
        return false;
    for (unsigned k = 0; k < dag->n_accesses; k++)
        if (dag->accesses[k].kind != RP__ACCESS_IOTA && a[k].stride[0] != 0 && !is_unit(dag, s, a, k, 0, width))
            return false;
    return true;
}

static void classify_pointwise(const rp__device *d, const rp__dag *dag, const rp__space *s, const rp__space_access *a,
                               rp__cuda_class *c) {
    unsigned widest = 1;
    int64_t points = product(s->extent, c->n_outer);
    c->template_ = RP__CUDA_POINTWISE;
    c->vector = 1;
    for (unsigned k = 0; k < dag->n_accesses; k++)
        if (c->n_outer && dag->accesses[k].kind != RP__ACCESS_IOTA && a[k].stride[c->n_outer - 1] != 0) {
            unsigned bytes = (unsigned)rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype);
            widest = bytes > widest ? bytes : widest;
        }
    unsigned width = 16 / widest > RP__CUDA_MAX_VECTOR ? RP__CUDA_MAX_VECTOR : 16 / widest;
    for (unsigned k = 0; s->how && k < s->how->narrow && width > 1; k++) width /= 2;
    if (c->n_outer) {
        unsigned fast = c->n_outer - 1u;
        c->ragged = has_rest(dag, s, a, width, c);
        /* windows go element by element */
        while (width > 1 && !c->ragged && (s->extent[fast] % width || dag->n_windows)) width /= 2;
        for (unsigned k = 0; k < dag->n_accesses; k++) {
            if (a[k].stride[fast] == 0 && !dag->accesses[k].windows)
                c->broadcast |= UINT64_C(1) << k;
            else if (width > 1 && is_unit(dag, s, a, k, fast, width))
                c->unit |= UINT64_C(1) << k;
        }
        if (c->unit) c->vector = (uint8_t)width;
        c->ragged = c->ragged && c->vector > 1;
        if (c->late) {
            c->vector = (uint8_t)s->extent[fast];
            c->unroll = 1;
            return;
        }
        if (c->vector > 1) c->gathered = rp__cuda_find_gathered(dag, s, a, fast, c);
    }
    if (c->n_outer > 1 && !(s->how && s->how->flat)) classify_tile(dag, s, a, c);
    if (c->template_ == RP__CUDA_TILE) {
        while (c->tile % c->vector || (unsigned)c->down * c->tile / c->vector < RP__CUDA_BLOCK) c->vector /= 2;
        if (c->vector == 1) c->unit = c->gathered = 0;
        return;
    }
    /* enough loads in flight for a thread, as long as every multiprocessor keeps several blocks */
    c->unroll = 4;
    while (c->unroll > 1 &&
           points / ((int64_t)RP__CUDA_BLOCK * c->vector * c->unroll) < 8 * (int64_t)d->multiprocessors)
        c->unroll /= 2;
    if (s->how && s->how->unroll) c->unroll = s->how->unroll;
}

static bool one_phase(const rp__dag *dag) {
    if (dag->n_phases != 2) return false;
    for (unsigned k = 0; k < dag->n_stores; k++)
        if (!rp__dag_is_row(dag, dag->stores[k].axes)) return false;
    return true;
}

/* Do the operands run along the outer dims rather than along the inner ones? Decided by the bytes of the loads. */
static bool outer_runs_faster(const rp__dag *dag, const rp__space *s, const rp__space_access *a,
                              const rp__cuda_class *c) {
    int64_t along_inner = 0, along_outer = 0;
    if (c->n_inner == 0 || c->n_outer == 0) return false;
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        if (dag->accesses[k].kind == RP__ACCESS_IOTA || rp__dag_is_row(dag, dag->accesses[k].axes)) continue;
        bool own = false; /* what all rows share is read once, whichever way */
        for (unsigned d = 0; d < c->n_outer; d++) own = own || a[k].stride[d] != 0;
        if (!own) continue;
        int64_t bytes = (int64_t)rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype);
        int64_t in = rp__space_step(dag, s, a, k, c->n_outer + c->n_inner - 1u),
                out = rp__space_step(dag, s, a, k, c->n_outer - 1u);
        if (in > 1 && out == 1)
            along_outer += bytes;
        else if (in == 1)
            along_inner += bytes;
    }
    return along_outer > along_inner;
}

/* Accesses whose rows begin equally far from an aligned vector: of those along rows, the ones like the first that moves. 0: there are none.
 * ends: they begin at whole vectors. */
static uint64_t find_alike(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned width,
                           const rp__cuda_class *c, bool *ends) {
    uint64_t alike = 0;
    unsigned first = 0;
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        const uint64_t bytes = rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype), base = (uint64_t)(uintptr_t)a[k].base;
        if (dag->accesses[k].kind == RP__ACCESS_IOTA || dag->accesses[k].windows || (c->broadcast >> k & 1) ||
            a[k].stride[c->n_outer] != 1 || base % bytes)
            continue;
        if (!alike) {
            first = k;
            *ends = base / bytes % width == 0;
        }
        const uint64_t other = rp__dtype_bytes((rp_dtype)dag->accesses[first].dtype);
        bool same = base / bytes % width == (uint64_t)(uintptr_t)a[first].base / other % width;
        for (unsigned d = 0; d < c->n_outer; d++) {
            if (s->extent[d] <= 1) continue;
            same = same && (a[k].stride[d] - a[first].stride[d]) % (int64_t)width == 0;
            if (!alike) *ends = *ends && a[k].stride[d] % (int64_t)width == 0;
        }
        if (same) alike |= UINT64_C(1) << k;
    }
    return alike;
}

static unsigned bytes_of(const rp__dag *dag, uint64_t accesses) {
    unsigned bytes = 0;
    for (unsigned k = 0; k < dag->n_accesses; k++)
        if ((accesses >> k & 1) && dag->accesses[k].kind != RP__ACCESS_IOTA) bytes += access_bytes(dag, k);
    return bytes;
}

/* Does element i of the row, of several dims, lie i behind the first? */
static bool is_line(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned k,
                    const rp__cuda_class *c) {
    const unsigned last = c->n_outer + c->n_inner - 1u;
    if (dag->accesses[k].windows || a[k].stride[last] != 1) return false;
    for (unsigned d = c->n_outer; d < last; d++)
        if (a[k].stride[d] != s->extent[d + 1] * a[k].stride[d + 1]) return false;
    return true;
}

/* Do rows of a line begin at whole vectors? */
static bool is_line_unit(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned k, unsigned width,
                         const rp__cuda_class *c) {
    const uint64_t bytes = rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype) * width, align = bytes > 16 ? 16 : bytes;
    if (dag->accesses[k].kind == RP__ACCESS_IOTA) return true;
    if ((uint64_t)(uintptr_t)a[k].base % align) return false;
    for (unsigned d = 0; d < c->n_outer; d++)
        if (s->extent[d] > 1 && a[k].stride[d] % (int64_t)width) return false;
    return true;
}

/* A row of several dims is read in vectors where its last dim holds whole ones, or the row does and lies in one line; one of a single dim wherever it begins and ends, if that
 * makes more of it vectors and it is not short. */
static void find_row_units(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned width,
                           rp__cuda_class *c) {
    enum { SHORT = 128 };
    const unsigned last = c->n_outer + c->n_inner - 1u;
    c->unit = c->line = 0;
    c->ragged = c->crosses = 0;
    for (unsigned k = 0; k < dag->n_accesses && c->n_inner > 1 && !dag->scans; k++)
        if (is_line(dag, s, a, k, c)) c->line |= UINT64_C(1) << k;
    if (c->line && s->extent[last] % width && s->extent[last] >= width &&
        product(s->extent + c->n_outer, c->n_inner) % width == 0) {
        for (unsigned k = 0; k < dag->n_accesses; k++)
            if ((c->line >> k & 1) && is_line_unit(dag, s, a, k, width, c)) c->unit |= UINT64_C(1) << k;
        c->crosses = c->unit != 0;
    }
    for (unsigned k = 0; k < dag->n_accesses && c->n_inner > 0; k++)
        if (!(c->broadcast >> k & 1) && (c->n_inner == 1 || !dag->scans) && s->extent[last] % width == 0 &&
            is_unit(dag, s, a, k, last, width))
            c->unit |= UINT64_C(1) << k;
    if (c->n_inner == 1 && !dag->scans && s->extent[last] >= SHORT && !(s->how && s->how->flat)) {
        bool ends = false;
        const uint64_t alike = find_alike(dag, s, a, width, c, &ends);
        if (bytes_of(dag, alike) > bytes_of(dag, c->unit)) {
            c->unit = alike;
            c->ragged = ends ? 1 : 2;
        }
    }
    c->vector = (uint8_t)(c->unit ? width : 1);
}

/* Is a thread's share of a row that is twice as long still at home in its registers? Asked of rows whose operands a kernel
 * may keep from phase to phase: two of them at the most, and no 8-byte elements. What stands still along the last of several dims (a weight a
 * channel) is little, but what a second operand makes with it is as much again. */
static bool is_light(const rp__dag *dag, const rp__space_access *a, const rp__cuda_class *c) {
    unsigned kept = 0, little = 0;
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        if (c->broadcast >> k & 1) continue;
        if (rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype) > 4) return false;
        bool own = dag->accesses[k].kind == RP__ACCESS_READ && c->n_outer == 0;
        for (unsigned d = 0; d < c->n_outer; d++)
            own = own || (a[k].stride[d] != 0 && dag->accesses[k].kind == RP__ACCESS_READ);
        if (c->n_inner > 1 && a[k].stride[c->n_outer + c->n_inner - 1u] == 0 && !dag->accesses[k].windows)
            little += own;
        else
            kept += own;
    }
    return kept + (kept > 1 ? little : 0) <= 2;
}

/* Rows of more than 1024 elements, where there are many: half as many threads with twice the elements each do the work of a row
 * that does not depend on its length, reductions above all, half as often; elements of two bytes and less are then
 * taken eight at a time. */
static void share_row(const rp__device *d, const rp__dag *dag, const rp__space *s, const rp__space_access *a, int64_t r,
                      int64_t rows, rp__cuda_class *c) {
    enum { WARP = 32 };
    unsigned tree = c->threads;
    c->tree = (uint16_t)tree;
    c->span = 4;
    const unsigned share = s->how ? s->how->share : 0;
    if (tree >= 128 && r <= 4096 && share != 1 &&
        (share == 2 || (rows >= 4 * (int64_t)d->multiprocessors && is_light(dag, a, c)))) {
        uint64_t narrow = 0, moving = 0;
        for (unsigned k = 0; k < dag->n_accesses; k++)
            if (!(c->broadcast >> k & 1) && dag->accesses[k].kind != RP__ACCESS_IOTA) {
                moving |= UINT64_C(1) << k;
                if (rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype) <= 2) narrow |= UINT64_C(1) << k;
            }
        c->threads = (uint16_t)(tree / 2);
        find_row_units(dag, s, a, 8, c);
        if (moving && narrow == moving && (c->unit & moving) == moving) c->span = 8;
    }
    find_row_units(dag, s, a, c->span, c);
    if (c->vector == 1 && tree >= 64) { /* neighbours in a warp read and write neighbours */
        c->strided = 1;
        c->threads = (uint16_t)tree;
    } else if (tree == WARP && r > 4 * WARP && c->n_inner == 1 && (c->vector == 1 || c->ragged == 2)) {
        /* lanes that are exchanged through shared memory, and what lies within vectors, would take longer than elements one by one */
        c->strided = 1;
        c->unit = 0;
        c->ragged = 0;
        c->vector = 1;
    }
    for (unsigned k = 0; k < dag->n_accesses && c->strided && c->n_inner == 1; k++)
        if (is_line(dag, s, a, k, c)) c->line |= UINT64_C(1) << k;
    int64_t step = (int64_t)c->threads * c->span, groups = (r + step - 1) / step;
    c->full = r > 0 && r % step == 0 && !c->ragged;
    c->groups = 1;
    while (c->groups < groups && !c->full) c->groups *= 2; /* few kernels for many lengths */
    if (c->full) c->groups = (uint8_t)groups;
    if (tree == WARP && c->strided && !c->full) {
        const unsigned by = rp__cuda_slot_step(c);
        c->tile = (uint16_t)(((unsigned)((r + WARP - 1) / WARP) + by - 1) / by * by);
    }
}

/* A block a chunk, 64 elements a thread. */
static void share_cluster(const rp__dag *dag, const rp__space *s, const rp__space_access *a, int64_t r,
                          rp__cuda_class *c) {
    c->template_ = RP__CUDA_CLUSTER;
    c->down = (uint16_t)((r + RP__CUDA_CHUNK - 1) / RP__CUDA_CHUNK);
    c->tree = RP__CUDA_BLOCK;
    c->span = 4;
    c->groups = RP__CUDA_CHUNK / RP__CUDA_BLOCK / 4;
    find_row_units(dag, s, a, 4, c);
    c->full = r % RP__CUDA_CHUNK == 0 && !c->ragged;
    c->strided = c->vector == 1;
}

enum { COLUMN_BLOCK = 512, COLUMN_SHARED = 48 << 10 }; /* threads; bytes */

/* Threads down a column: as many as it has groups of lanes in a part, and a block room. */
static unsigned column_down(const rp__cuda_class *c) {
    unsigned down = 1;
    while (2 * down * c->parts <= c->threads && 2 * down * c->tile <= COLUMN_BLOCK) down *= 2;
    return down;
}

static int64_t column_blocks(const rp__cuda_class *c, int64_t rows, int64_t chunks) {
    return (rows + rp__cuda_columns(c) - 1) / rp__cuda_columns(c) * chunks * c->parts;
}

/* Columns of several phases that a block has in registers: read once. As wide as leaves a thread 16 elements, or 32 where rows of the
 * block would be shorter than a line. */
static void hold_column(const rp__dag *dag, const rp__space *s, const rp__space_access *a, int64_t r,
                        rp__cuda_class *c) {
    enum { BLOCK = 256, MOST = 16, LINE = 128 };
    const unsigned tree = 4u * c->threads, rounds = (unsigned)((r + tree - 1) / tree), own = c->threads / c->parts;
    unsigned down = own < 32 ? own : 32, vector = c->vector, widest = 1;
    const unsigned tile = c->tile < BLOCK / down ? c->tile : BLOCK / down;
    const bool column = c->template_ == RP__CUDA_COLUMN || c->template_ == RP__CUDA_CLUSTER_COLUMN;
    if (!column || c->once || r > 1024 * (int64_t)c->parts || !is_light(dag, a, c) || dag->n_nodes > 40 ||
        (s->how && s->how->flat))
        return;
    for (unsigned k = 0; k < dag->n_accesses; k++)
        if ((c->unit >> k & 1) && access_bytes(dag, k) > widest) widest = access_bytes(dag, k);
    const unsigned slots = own / down * rounds * 4;
    while (vector > 1 && slots * vector > MOST && (slots * vector > 2 * MOST || vector / 2 * tile * widest >= LINE))
        vector /= 2;
    if (slots * vector > 2 * MOST) return;
    if (vector != c->vector) {
        c->vector = (uint8_t)vector;
        if (vector == 1) c->unit = c->staged_unit = 0;
    }
    c->groups = (uint8_t)rounds;
    c->down = (uint16_t)down;
    c->tile = (uint16_t)tile;
    c->unroll = 1;
}

/* Is what a load of access k gives needed for values of rows alone, and those for stores alone? Every block reads it, and one stores. */
static bool stays_in_row(const rp__dag *dag, unsigned k) {
    bool made[RP__DAG_MAX_NODES];
    for (unsigned v = 0; v < dag->n_nodes; v++) {
        const rp__node *n = &dag->nodes[v];
        made[v] = (n->op == RP__LOAD && n->access == k) || (n->a != RP__NO_VAL && made[n->a]) ||
                  (n->b != RP__NO_VAL && made[n->b]) || (n->c != RP__NO_VAL && made[n->c]);
        if (made[v] && (n->op == RP__REDUCE || n->op == RP__SCAN)) return false;
    }
    for (unsigned i = 0; i < dag->n_stores; i++) {
        const rp__store *to = &dag->stores[i];
        if (!rp__dag_is_row(dag, to->axes) && (made[to->value] || (to->offset != RP__NO_VAL && made[to->offset]) ||
                                               (to->predicate != RP__NO_VAL && made[to->predicate])))
            return false;
    }
    return true;
}

/* The same elements at the same places? */
static bool lie_alike(const rp__dag *dag, const rp__space_access *a, unsigned k, unsigned m, unsigned dims) {
    return a[k].begin == a[m].begin && a[k].end == a[m].end && access_bytes(dag, k) == access_bytes(dag, m) &&
           !dag->accesses[k].windows && memcmp(a[k].stride, a[m].stride, dims * sizeof a->stride[0]) == 0;
}

/* May a block store a value of a row before others have used what is there? Then one block has to walk the row. */
static bool rows_in_place(const rp__dag *dag, const rp__space_access *a, const rp__cuda_class *c) {
    for (unsigned k = 0; k < dag->n_stores; k++) {
        const unsigned to = dag->stores[k].access;
        if (!rp__dag_is_row(dag, dag->stores[k].axes)) continue;
        for (unsigned r = 0; r < dag->n_accesses; r++)
            if (dag->accesses[r].kind != RP__ACCESS_WRITE && a[r].storage && a[r].storage == a[to].storage &&
                a[r].begin < a[to].end && a[to].begin < a[r].end &&
                !(lie_alike(dag, a, r, to, c->n_outer + c->n_inner) && stays_in_row(dag, r)))
                return true;
    }
    return false;
}

/* Is every element that is stored, if any is, made without a sum, and read by nobody but for what is stored in its place? Then one walk is
 * enough. */
static bool walks_once(const rp__dag *dag, const rp__space_access *a, const rp__cuda_class *c) {
    if (dag->n_phases != 2 || dag->scans) return false;
    for (unsigned k = 0; k < dag->n_stores; k++) {
        const rp__store *to = &dag->stores[k];
        if (rp__dag_is_row(dag, to->axes)) continue;
        if (to->mode != RP__STORE_SET || to->offset != RP__NO_VAL || to->predicate != RP__NO_VAL ||
            dag->nodes[to->value].phase > 0)
            return false;
        for (unsigned r = 0; r < dag->n_accesses; r++)
            if (r != to->access && dag->accesses[r].kind != RP__ACCESS_WRITE && a[r].storage &&
                a[r].storage == a[to->access].storage && a[r].begin < a[to->access].end &&
                a[to->access].begin < a[r].end && !lie_alike(dag, a, r, to->access, c->n_outer + c->n_inner))
                return false;
    }
    return true;
}

/* Are all sums of types that blocks of a cluster exchange? */
static bool exchanges_sums(const rp__dag *dag) {
    for (unsigned k = 0; k < dag->n_nodes; k++)
        if (dag->nodes[k].op == RP__REDUCE && rp__dtype_bytes((rp_dtype)dag->nodes[k].dtype) < 4) return false;
    return true;
}

/* As many as there are chunks, a power of two. */
static unsigned fold_lanes(int64_t chunks) {
    unsigned lanes = 1;
    while (lanes < chunks && lanes < RP__CUDA_FOLD) lanes *= 2;
    return lanes;
}

/* How often a thread of a block waits for loads that it gives together. */
static int64_t column_rounds(const rp__cuda_class *c, int64_t in_chunk) {
    return in_chunk / ((int64_t)column_down(c) * c->parts * 4 * c->unroll);
}

/* Registers that wait for one group of four elements of a thread's columns. */
static unsigned group_words(const rp__dag *dag, const rp__cuda_class *c) {
    unsigned words = 0;
    for (unsigned k = 0; k < dag->n_accesses; k++)
        if (dag->accesses[k].kind == RP__ACCESS_READ && !rp__dag_is_row(dag, dag->accesses[k].axes)) {
            const unsigned bytes = access_bytes(dag, k) * ((c->unit >> k & 1) ? c->vector : 1u);
            words += 4 * ((bytes + 3) / 4);
        }
    return words;
}

/* Few columns of a block each: the loads of a thread are all that is under way. */
static void deepen_column(const rp__device *d, const rp__dag *dag, int64_t rows, int64_t chunks, int64_t in_chunk,
                          rp__cuda_class *c) {
    enum { DEEP = 8, LIGHT = 24, WORDS = 32 };
    const unsigned words = group_words(dag, c);
    while (dag->n_nodes <= LIGHT && c->unroll < DEEP &&
           (c->unroll * c->vector < DEEP || (words && c->unroll * words < WORDS)) && column_rounds(c, in_chunk) > 1 &&
           column_blocks(c, rows, chunks) < 2 * (int64_t)d->multiprocessors)
        c->unroll *= 2;
}

/* Microseconds, about: launches, loads of a thread that wait for those before them, and what multiprocessors with a block issue. */
static double column_time(const rp__device *d, const rp__dag *dag, int64_t r, int64_t rows, const rp__cuda_class *c) {
    static const double launch = 2.2, round = 0.5, issued = 217600 /* by lanes of a multiprocessor */;
    unsigned elements = 0;
    for (unsigned k = 0; k < dag->n_nodes; k++) elements += !rp__dag_is_row(dag, dag->nodes[k].axes);
    const unsigned walks = c->once ? 1 : dag->n_phases, launches = c->template_ == RP__CUDA_PARTIAL_COLUMN ? 2
                                                                   : c->template_ == RP__CUDA_SPLIT_COLUMN
                                                                       ? dag->n_phases
                                                                       : 1;
    const int64_t blocks = column_blocks(c, rows, 1), busy = blocks < d->multiprocessors ? blocks : d->multiprocessors;
    const double each = 10 * walks + 1.5 * elements; /* instructions */
    return launches * launch + walks * (double)column_rounds(c, r) * round +
           (double)rows * (double)r * each / ((double)busy * issued);
}

/* Shared memory of a block of columns. */
static unsigned column_bytes(const rp__dag *dag, const rp__cuda_class *c) {
    const unsigned exchanged = c->template_ == RP__CUDA_CLUSTER_COLUMN ? c->parts : 0;
    unsigned bytes = 0;
    for (unsigned k = 0; k < dag->n_nodes; k++)
        if (dag->nodes[k].op == RP__REDUCE) bytes += (unsigned)rp__dtype_bytes((rp_dtype)dag->nodes[k].dtype);
    return bytes * (column_down(c) + exchanged) * (rp__cuda_columns(c) + 1);
}

/* One part of the column for each block of a cluster, in one launch, unless what c has already is no slower. */
static void share_among_cluster(const rp__device *d, const rp__dag *dag, const rp__space *s, const rp__space_access *a,
                                int64_t r, int64_t rows, unsigned narrow, rp__cuda_class *c) {
    enum { LEAST = 8 }; /* groups of lanes for each part */
    const int64_t wanted = 7 * (int64_t)d->multiprocessors / 4, least = 3 * (int64_t)d->multiprocessors / 4;
    rp__cuda_class own = *c;
    if (!d->clusters || r > RP__CUDA_CHUNK || (s->how && (s->how->parts || s->how->flat)) || !exchanges_sums(dag) ||
        rows > INT32_MAX / RP__CUDA_MOST_BLOCKS || (!c->once && rows_in_place(dag, a, c)))
        return;
    own.template_ = RP__CUDA_CLUSTER_COLUMN;
    own.parts = 1;
    own.tile = (uint16_t)(32u >> (s->how ? s->how->narrow & 3u : 0));
    while (own.tile > 1 && own.tile / 2 * own.vector >= rows) own.tile /= 2;
    while (own.parts < RP__CUDA_MOST_BLOCKS && 2u * LEAST * own.parts <= own.threads &&
           column_blocks(&own, rows, 1) < wanted)
        own.parts *= 2;
    while (own.tile > narrow && column_blocks(&own, rows, 1) < least) own.tile /= 2;
    while (own.tile > 1 && column_bytes(dag, &own) > COLUMN_SHARED) own.tile /= 2;
    if (column_bytes(dag, &own) > COLUMN_SHARED) return;
    if (own.parts > 1 && column_time(d, dag, r, rows, &own) < column_time(d, dag, r, rows, c)) *c = own;
}

/* Rows side by side: a thread takes as many as one load of 16 bytes holds, a warp 512 bytes next to each other. Where that leaves
 * multiprocessors without work, and enough to do for those that have it, several blocks share a chunk; else stripes get narrower. What blocks have in
 * common a cluster exchanges, or it is left to a launch behind them: of several phases there is one for each. */
static void share_column(const rp__device *d, const rp__dag *dag, const rp__space *s, const rp__space_access *a,
                         int64_t r, int64_t rows, rp__cuda_class *c) {
    enum {
        SHARED = 2 << 20,
        ROUNDS = 8,
        HELD = 1024
    }; /* bytes, and loads after each other, that are worth a second launch */
    const int64_t chunks = (r + RP__CUDA_CHUNK - 1) / RP__CUDA_CHUNK,
                  in_chunk = r < RP__CUDA_CHUNK ? r : RP__CUDA_CHUNK;
    const unsigned last = c->n_outer - 1u, tree = 4u * c->threads;
    c->once = walks_once(dag, a, c);
    const bool one = c->once;
    unsigned widest = 1, reductions = 0, width;
    for (unsigned k = 0; k < dag->n_nodes; k++) reductions += dag->nodes[k].op == RP__REDUCE;
    for (unsigned k = 0; k < dag->n_accesses; k++)
        if (!(c->broadcast >> k & 1) && dag->accesses[k].kind != RP__ACCESS_IOTA && a[k].stride[last] != 0 &&
            access_bytes(dag, k) > widest)
            widest = access_bytes(dag, k);
    width = 16 / widest > RP__CUDA_MAX_VECTOR ? RP__CUDA_MAX_VECTOR : 16 / widest;
    while (width > 1 && (s->extent[last] % width || dag->n_windows || (width > 2 && reductions > 2) ||
                         (width > 4 && (reductions > 1 || dag->n_nodes > 24))))
        width /= 2;
    while (chunks == 1 && width > 2 && rows / width * c->threads < RP__CUDA_BLOCK * (int64_t)d->multiprocessors)
        width /= 2; /* threads for all multiprocessors rather than wide loads of some */
    c->unit = 0;
    for (unsigned k = 0; k < dag->n_accesses && width > 1; k++)
        if (!rp__dag_is_row(dag, dag->accesses[k].axes) && !(c->broadcast >> k & 1) &&
            is_unit(dag, s, a, k, last, width))
            c->unit |= UINT64_C(1) << k;
    c->vector = (uint8_t)(c->unit ? width : 1);
    for (unsigned k = 0; k < dag->n_accesses && c->unit; k++)
        if (a[k].stride[last] == 0 && !dag->accesses[k].windows) c->staged_unit |= UINT64_C(1) << k;
    c->unroll = in_chunk > tree && dag->n_nodes <= 24 ? 2 : 1;
    c->tile = (uint16_t)(32u >> (s->how ? s->how->narrow & 3u : 0));
    while (c->tile > 1 && c->tile / 2 * c->vector >= rows) c->tile /= 2;
    const int64_t wanted = 7 * (int64_t)d->multiprocessors / 4, least = 3 * (int64_t)d->multiprocessors / 4;
    const unsigned narrow = 64 / (c->vector * widest) > 4 ? 64 / (c->vector * widest) : 4;
    const uint16_t wide = c->tile;
    while (c->tile > narrow && column_blocks(c, rows, chunks) < least) c->tile /= 2;
    const bool slow = column_rounds(c, in_chunk) >= ROUNDS && column_blocks(c, rows, chunks) < least;
    c->tile = wide;
    const bool worth = chunks > 1 || (one ? slow || in_chunk * rows * widest >= SHARED
                                          : slow && r > HELD && !rows_in_place(dag, a, c));
    const unsigned parts = s->how && one && in_chunk >= 64 ? s->how->parts : 0;
    while (parts && c->parts < parts && 8 * c->parts <= c->threads) c->parts *= 2;
    while (!parts && worth && c->parts < 32 && 8 * c->parts <= c->threads && column_blocks(c, rows, chunks) < wanted) {
        if (c->parts >= 8 && c->tile * c->vector * widest > 256) /* what is left to a second launch stays little */
            c->tile /= 2;
        else
            c->parts *= 2;
    }
    while (c->tile > narrow && column_blocks(c, rows, chunks) < least) c->tile /= 2;
    if (c->parts == 1 && c->tile == 32 && one && column_blocks(c, rows, chunks) < 6 * (int64_t)d->multiprocessors)
        c->tile = 16; /* the last blocks to run are few */
    c->template_ = chunks == 1 && c->parts == 1 ? RP__CUDA_COLUMN
                   : one                        ? RP__CUDA_PARTIAL_COLUMN
                                                : RP__CUDA_SPLIT_COLUMN;
    share_among_cluster(d, dag, s, a, r, rows, narrow, c);
    deepen_column(d, dag, rows, chunks, in_chunk, c);
    if (s->how && s->how->unroll == 1) c->unroll = 1;
    c->down = (uint16_t)column_down(c);
    if (c->template_ == RP__CUDA_SPLIT_COLUMN) {
        c->tree = (uint16_t)fold_lanes(chunks);
        c->full = chunks <= RP__CUDA_FOLD;
    }
    hold_column(dag, s, a, r, c);
}

/* Scans of what no scan and no reduction goes into: chunks know each other by one total each. */
static bool is_one_scan(const rp__dag *dag) {
    bool behind[RP__DAG_MAX_NODES];
    for (unsigned k = 0; k < dag->n_nodes; k++) {
        const rp__node *n = &dag->nodes[k];
        const rp__val operands[3] = {n->a, n->b, n->c};
        if (n->op == RP__REDUCE) return false;
        behind[k] = false;
        for (int i = 0; i < 3; i++) behind[k] = behind[k] || (operands[i] != RP__NO_VAL && behind[operands[i]]);
        if (n->op != RP__SCAN) continue;
        if (behind[k]) return false;
        behind[k] = true;
    }
    return true;
}

/* Do neighbouring rows lie side by side, rather than elements of a row? Backwards is as good as forwards. */
static bool rows_lie_across(const rp__dag *dag, const rp__space_access *a, const rp__cuda_class *c) {
    int64_t across = 0, within = 0;
    if (c->n_outer == 0 || c->n_inner == 0) return false;
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        const int64_t in = a[k].stride[c->n_outer + c->n_inner - 1u], out = a[k].stride[c->n_outer - 1u];
        if (dag->accesses[k].kind == RP__ACCESS_IOTA || rp__dag_is_row(dag, dag->accesses[k].axes)) continue;
        if (in == 1 || in == -1)
            within += access_bytes(dag, k);
        else if (in != 0 && (out == 1 || out == -1))
            across += access_bytes(dag, k);
    }
    return across > within;
}

/* A row of few elements, one of those side by side, is a thread's: all of its loads are under way at once, and nothing is told to others. */
static bool share_scan_alone(const rp__device *d, const rp__dag *dag, int64_t r, int64_t rows, rp__cuda_class *c) {
    enum { MOST = 32, VALUES = 160, BLOCK = 256, WARP = 32 };
    if (!c->across || r > MOST || r * dag->n_nodes > VALUES) return false;
    c->span = (uint8_t)r;
    c->threads = 1;
    c->full = 1;
    c->tile = BLOCK;
    while (c->tile > WARP && (rows + c->tile - 1) / c->tile < (int64_t)d->multiprocessors) c->tile /= 2;
    return true;
}

/* Threads for a row's elements, four each, up to 256; rows for the rest of a block. Rows that lie side by side are read by lines: 32 of
 * them where that leaves every multiprocessor a block, at least 8, and then longer rows have more threads. */
static void share_scan(const rp__device *d, const rp__dag *dag, const rp__space *s, const rp__space_access *a,
                       int64_t r, int64_t rows, rp__cuda_class *c) {
    enum { BLOCK = 256, MOST = 1024, LIGHT = 16, SHARED = 40 << 10, LINE = 8 };
    unsigned threads = 1, bytes = 0;
    while (threads < BLOCK && 4 * (int64_t)threads < r) threads *= 2;
    c->template_ = RP__CUDA_SCAN;
    c->across = rows >= LINE && rows_lie_across(dag, a, c);
    if (share_scan_alone(d, dag, r, rows, c)) return;
    if (c->across) {
        const unsigned wanted = threads, most = dag->n_nodes > LIGHT ? MOST / 2 : MOST;
        unsigned tile = 32;
        for (unsigned k = 0; k < dag->n_nodes; k++)
            if (dag->nodes[k].op == RP__SCAN) bytes += 2 * (unsigned)rp__dtype_bytes((rp_dtype)dag->nodes[k].dtype);
        threads = wanted < 32 ? wanted : 32;
        while (tile > LINE && (threads * tile * bytes > SHARED || threads * tile > most ||
                               (rows + tile - 1) / tile < (int64_t)d->multiprocessors))
            tile /= 2;
        while (threads < wanted && 2 * threads * tile * bytes <= SHARED && 2 * threads * tile <= most) threads *= 2;
        c->across = threads * tile * bytes <= SHARED;
        c->tile = (uint16_t)tile;
    }
    if (!c->across) {
        threads = 1;
        while (threads < BLOCK && 4 * (int64_t)threads < r) threads *= 2;
        c->tile = (uint16_t)(BLOCK / threads);
        find_row_units(dag, s, a, 4, c);
    }
    c->threads = (uint16_t)threads;
    c->full = r <= 4 * (int64_t)threads;
}

static void classify_rows(const rp__device *d, const rp__dag *dag, const rp__space *s, const rp__space_access *a,
                          rp__cuda_class *c) {
    int64_t r = product(s->extent + c->n_outer, c->n_inner), rows = product(s->extent, c->n_outer);
    unsigned inner = c->n_outer;
    unsigned first = 0;
    c->threads = (uint16_t)rp__cuda_row_threads(r);
    c->vector = 1;
    c->parts = 1;
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        bool still = true;
        for (unsigned x = 0; x < c->n_inner; x++) still = still && a[k].stride[inner + x] == 0;
        for (unsigned i = first; i < first + dag->accesses[k].windows; i++)
            for (unsigned x = 0; x < c->n_inner; x++) still = still && s->windows[i].factor[inner + x] == 0;
        first += dag->accesses[k].windows;
        if (still) c->broadcast |= UINT64_C(1) << k;
    }
    bool column = (one_phase(dag) || (dag->n_phases > 1 && (r <= RP__CUDA_CHUNK || !rows_in_place(dag, a, c)))) &&
                  !dag->scans && rows >= 8 && outer_runs_faster(dag, s, a, c);
    const bool few = r > RP__CUDA_CHUNK && rows < 2 * (int64_t)d->multiprocessors && !rows_in_place(dag, a, c);
    const unsigned wish = s->how ? s->how->path : 0;
    const bool cluster = r > RP__CUDA_CHUNK && r <= RP__CUDA_MOST_BLOCKS * RP__CUDA_CHUNK && d->clusters &&
                         rows <= INT32_MAX / RP__CUDA_MOST_BLOCKS;
    if (s->how && s->how->tree && !column && !dag->scans && r > 1024 && r <= RP__CUDA_CHUNK) c->threads = s->how->tree;
    if (dag->scans && few && is_one_scan(dag))
        c->template_ = RP__CUDA_SCAN_TOTALS;
    else if (dag->scans && dag->n_phases == 1)
        share_scan(d, dag, s, a, r, rows, c);
    else if (dag->scans)
        c->template_ = RP__CUDA_ROW_LOOP;
    else if (column)
        share_column(d, dag, s, a, r, rows, c);
    else if (wish == 1 + RP__CUDA_ROW_LOOP && r > RP__CUDA_CHUNK)
        c->template_ = RP__CUDA_ROW_LOOP;
    else if (wish == 1 + RP__CUDA_PARTIAL_ROW && r > RP__CUDA_CHUNK && one_phase(dag))
        c->template_ = RP__CUDA_PARTIAL_ROW;
    else if (wish == 1 + RP__CUDA_SPLIT && r > RP__CUDA_CHUNK && dag->n_phases > 1 && !rows_in_place(dag, a, c))
        c->template_ = RP__CUDA_SPLIT;
    else if (cluster && wish == 1 + RP__CUDA_CLUSTER)
        share_cluster(dag, s, a, r, c);
    else if (r > RP__CUDA_CHUNK && one_phase(dag) && rows < 2 * (int64_t)d->multiprocessors)
        c->template_ = RP__CUDA_PARTIAL_ROW;
    else if (cluster && is_light(dag, a, c))
        share_cluster(dag, s, a, r, c);
    else if (few && dag->n_phases > 1)
        c->template_ = RP__CUDA_SPLIT;
    else
        c->template_ = r > RP__CUDA_CHUNK ? RP__CUDA_ROW_LOOP : RP__CUDA_ROW;
    if (c->template_ == RP__CUDA_ROW)
        share_row(d, dag, s, a, r, rows, c);
    else if (c->template_ == RP__CUDA_ROW_LOOP || c->template_ == RP__CUDA_PARTIAL_ROW ||
             c->template_ == RP__CUDA_SPLIT || c->template_ == RP__CUDA_SCAN_TOTALS)
        find_row_units(dag, s, a, 4, c);
}

/* The caller's space with its own accesses, collapsed, and its class. */
typedef struct work {
    rp__space space;
    rp__space_access accesses[RP__DAG_MAX_ACCESSES];
    rp__space_window windows[RP__DAG_WINDOWS];
    rp__cuda_class class_;
    int64_t rows, inner;
} work;

/* The templates are of points and rows. */
static rp_status check(const rp__dag *dag) {
    return dag->rows ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "CUDA loop kernel: reductions over different axes");
}

/* Places are computed from many iotas, of which each moves along a dim or two. Of points other strides are left to arguments: one kernel
 * for all broadcasts. */
static void find_still(const rp__dag *dag, work *w) {
    rp__cuda_class *c = &w->class_;
    const unsigned dims = rp__space_dims(&w->space);
    if (c->template_ != RP__CUDA_SHORT && c->template_ != RP__CUDA_POINTWISE) return;
    for (unsigned d = 0; d < dims && d < RP__CUDA_STILL_DIMS; d++)
        for (unsigned k = 0; k < dag->n_accesses; k++)
            if (w->accesses[k].stride[d] == 0 &&
                (c->template_ == RP__CUDA_SHORT || dag->accesses[k].kind == RP__ACCESS_IOTA))
                c->still[d] |= UINT64_C(1) << k;
}

/* Which nodes are the same along dim d? As is_still_along says, of all at once. */
static void find_still_along(const rp__dag *dag, const rp__space_access *a, unsigned d, bool *still) {
    for (unsigned k = 0; k < dag->n_nodes; k++) {
        const rp__node *n = &dag->nodes[k];
        const bool moves = (n->op == RP__LOAD || n->op == RP__IOTA || n->op == RP__INSIDE) &&
                           (a[n->access].stride[d] != 0 || dag->accesses[n->access].windows);
        still[k] = !moves && n->op != RP__REDUCE && n->op != RP__SCAN && (n->a == RP__NO_VAL || still[n->a]) &&
                   (n->b == RP__NO_VAL || still[n->b]) && (n->c == RP__NO_VAL || still[n->c]);
    }
}

/* Do places that are computed stand still along dim d and differ along the last one, and much with them? */
static bool shares_places(const rp__dag *dag, const rp__space_access *a, unsigned d, unsigned last) {
    enum { MUCH = 12 };
    bool along[RP__DAG_MAX_NODES], across[RP__DAG_MAX_NODES], places = false;
    unsigned much = 0;
    find_still_along(dag, a, d, across);
    find_still_along(dag, a, last, along);
    for (unsigned k = 0; k < dag->n_nodes; k++) {
        const rp__node *n = &dag->nodes[k];
        places = places || (n->op == RP__LOAD && n->a != RP__NO_VAL && across[n->a] && !along[n->a]);
        much += across[k] && n->op != RP__CONST && n->op != RP__SCALAR;
    }
    return places && much >= MUCH;
}

/* Where places are computed and stand still along another dim than the last one - those of a picture, for all of its channels - a thread has
 * several elements along that dim: they become a dim of their own, the last, and vectors run along it, so that a place is computed once for
 * them. Neighbouring threads keep neighbouring places. */
static void split_still(const rp__device *d, const rp__dag *dag, work *w) {
    enum { MOST = 8, LEAST = 4 };
    rp__space *s = &w->space;
    rp__cuda_class *c = &w->class_;
    const unsigned n = c->n_outer;
    if (n < 2 || n == RP__SPACE_MAX_DIMS || dag->n_windows || dag->random || (s->how && s->how->flat)) return;
    for (unsigned k = 0; k < dag->n_stores; k++)
        if (dag->stores[k].offset != RP__NO_VAL || dag->stores[k].predicate != RP__NO_VAL ||
            dag->stores[k].mode != RP__STORE_SET)
            return;
    for (unsigned x = 0; x + 1 < n; x++) {
        int64_t by = MOST;
        while (by >= LEAST && (s->extent[x] % by || w->rows / by < 2 * RP__CUDA_BLOCK * (int64_t)d->multiprocessors))
            by /= 2;
        if (by < LEAST || !shares_places(dag, w->accesses, x, n - 1)) continue;
        bool good = true;
        for (unsigned k = 0; k < dag->n_accesses; k++) {
            const bool memory = dag->accesses[k].kind != RP__ACCESS_IOTA,
                       written = dag->accesses[k].kind != RP__ACCESS_READ;
            good = good && !(memory && w->accesses[k].stride[x] == 1) &&
                   !(memory && written && w->accesses[k].stride[x] == 0);
        }
        if (!good) continue;
        s->extent[x] /= by;
        s->extent[n] = by;
        for (unsigned k = 0; k < dag->n_accesses; k++) {
            w->accesses[k].stride[n] = w->accesses[k].stride[x];
            w->accesses[k].stride[x] *= by;
        }
        unsigned axis = RP__DAG_MAX_AXES - 1;
        while (axis > 0 && s->dims[axis] == 0) axis--;
        s->dims[axis]++;
        c->n_outer++;
        c->late = 1;
        return;
    }
}

static void classify(const rp__device *d, const rp__dag *dag, bool rows, work *w) {
    if (rows && rp__cuda_short(d, dag, &w->space, w->accesses, &w->class_)) return;
    if (rows) {
        classify_rows(d, dag, &w->space, w->accesses, &w->class_);
    } else {
        order_points(dag, &w->space, w->accesses);
        split_still(d, dag, w);
        classify_pointwise(d, dag, &w->space, w->accesses, &w->class_);
    }
}

static void prepare(const rp__device *d, const rp__dag *dag, const rp__space *space, work *w) {
    w->space = *space;
    memcpy(w->accesses, space->accesses, space->n_accesses * sizeof *w->accesses);
    w->space.accesses = w->accesses;
    if (dag->n_windows) memcpy(w->windows, space->windows, dag->n_windows * sizeof *w->windows);
    w->space.windows = w->windows;
    rp__space_collapse(dag, &w->space, w->accesses);
    memset(&w->class_, 0, sizeof w->class_);
    bool rows = dag->ordered != 0;
    for (unsigned k = 0; k < dag->n_stores; k++)
        rows = rows || (rp__dag_is_row(dag, dag->stores[k].axes) && rp__space_inner(dag, space) > 0);
    w->class_.n_inner = (uint8_t)(rows ? rp__space_inner(dag, &w->space) : 0);
    w->class_.n_outer = (uint8_t)(rp__space_dims(&w->space) - w->class_.n_inner);
    w->class_.n_draws = (uint8_t)w->space.n_draws;
    w->class_.wide = is_wide(dag, &w->space, w->accesses);
    w->rows = product(w->space.extent, w->class_.n_outer);
    w->inner = product(w->space.extent + w->class_.n_outer, w->class_.n_inner);
    rp__cuda_find_ranges(dag, &w->space, w->accesses, &w->class_);
    classify(d, dag, rows, w);
    find_still(dag, w);
}

/* ---- schedules ---- */

/* Adds a wish that comes to a class of its own. Not inlined: each copy would have a `work` of its own in the caller's frame. */
static __attribute__((noinline)) void offer(const rp__device *d, const rp__dag *dag, const rp__space *space,
                                            const rp__schedule *how, rp__cuda_class *classes, rp__schedule *out,
                                            size_t *n, size_t room) {
    work w;
    rp__space s = *space;
    s.how = how;
    if (*n == room) return;
    prepare(d, dag, &s, &w);
    for (size_t k = 0; k <= *n; k++)
        if (memcmp(&classes[k], &w.class_, sizeof w.class_) == 0) return; /* the own choice comes first */
    out[*n] = *how;
    classes[++*n] = w.class_;
}

/* The own choice of the backend, and elements of a row. Not inlined, as above. */
static __attribute__((noinline)) int64_t own_class(const rp__device *d, const rp__dag *dag, const rp__space *space,
                                                   rp__cuda_class *out) {
    work w;
    prepare(d, dag, space, &w);
    *out = w.class_;
    return w.inner;
}

static size_t schedules(rp__device *d, rp__dag *dag, const rp__space *space, bool free, rp__schedule *out,
                        size_t room) {
    enum { MOST = 16 };
    rp__cuda_class classes[MOST + 1];
    rp__space s = *space;
    size_t n = 0;
    if (dag->rest || !dag->rows) return 0;
    if (room > MOST) room = MOST;
    s.how = NULL;
    const int64_t inner = own_class(d, dag, &s, &classes[0]);
#define OFFER(...) offer(d, dag, &s, &(rp__schedule){__VA_ARGS__}, classes, out, &n, room)
    switch ((rp__cuda_template)classes[0].template_) {
    case RP__CUDA_POINTWISE:
    case RP__CUDA_TILE:
        OFFER(.flat = 1);
        for (uint8_t unroll = 1; unroll <= 8; unroll = (uint8_t)(2 * unroll)) {
            OFFER(.unroll = unroll);
            OFFER(.unroll = unroll, .narrow = 1);
        }
        break;
    case RP__CUDA_COLUMN:
    case RP__CUDA_CLUSTER_COLUMN:
    case RP__CUDA_PARTIAL_COLUMN:
    case RP__CUDA_SPLIT_COLUMN:
        for (uint8_t narrow = 0; narrow < 3; narrow++) {
            for (uint8_t parts = 1; parts <= 16; parts = (uint8_t)(4 * parts)) OFFER(.narrow = narrow, .parts = parts);
            OFFER(.narrow = narrow);
        }
        OFFER(.unroll = 1);
        OFFER(.flat = 1);
        break;
    case RP__CUDA_SHORT:
        for (uint8_t narrow = 1; narrow < 4; narrow++) OFFER(.narrow = narrow);
        OFFER(.flat = 1);
        break;
    default: /* rows; those that have one class offer nothing */
        OFFER(.path = 1 + RP__CUDA_SHORT);
        OFFER(.share = 1);
        OFFER(.share = 2);
        OFFER(.flat = 1);
        OFFER(.path = 1 + RP__CUDA_CLUSTER);
        OFFER(.path = 1 + RP__CUDA_ROW_LOOP);
        OFFER(.path = 1 + RP__CUDA_PARTIAL_ROW);
        OFFER(.path = 1 + RP__CUDA_SPLIT);
        for (uint16_t tree = 128; free && tree <= 256; tree = (uint16_t)(2 * tree))
            if (inner <= 64 * (int64_t)tree) OFFER(.tree = tree);
        break;
    }
#undef OFFER
    return n;
}

static void schedule_text(rp__device *d, rp__dag *dag, const rp__space *space, rp__text *out) {
    work w;
    if (dag->rest || !dag->rows) return;
    prepare(d, dag, space, &w);
    const rp__cuda_class *c = &w.class_;
    rp__text_puts(out, template_name(c->template_));
    if (c->vector > 1) rp__text_add(out, ", vectors of %u", c->vector);
    if (c->unroll > 1) rp__text_add(out, ", %u a thread", c->unroll);
    if (c->threads > 1) rp__text_add(out, ", %u threads", c->threads);
    if (c->tile && c->template_ != RP__CUDA_ROW) rp__text_add(out, ", %u by %u", c->down, c->tile);
    if (c->parts > 1) rp__text_add(out, ", %u blocks a chunk", c->parts);
}

static void machine(rp__device *d, rp__text *out) {
    int driver = 0;
    if (rp__cuda_enter(d) == RP_OK && rp__cuda_of(d)->cu->cuDriverGetVersion)
        (void)rp__cuda_of(d)->cu->cuDriverGetVersion(&driver);
    rp__text_add(out, "%s, driver %d", d->label, driver);
}

/* ---- binding ---- */

static bool stores_elements(const rp__dag *dag) {
    for (unsigned k = 0; k < dag->n_stores; k++)
        if (!rp__dag_is_row(dag, dag->stores[k].axes)) return true;
    return false;
}

static int64_t blocks_of(const rp__dag *dag, const work *w) {
    const rp__cuda_class *c = &w->class_;
    int64_t chunks = (w->inner + RP__CUDA_CHUNK - 1) / RP__CUDA_CHUNK, per;
    const bool ends = c->phase + 1u == dag->n_phases && !stores_elements(dag); /* the last launch of a split row */
    switch ((rp__cuda_template)c->template_) {
    case RP__CUDA_POINTWISE: per = (int64_t)RP__CUDA_BLOCK * c->vector * c->unroll; return (w->rows + per - 1) / per;
    case RP__CUDA_TILE: {
        const int64_t across = w->space.extent[c->across], along = w->space.extent[c->n_outer - 1];
        return w->rows / across / along * ((across + c->down - 1) / c->down) * ((along + c->tile - 1) / c->tile);
    }
    case RP__CUDA_ROW: per = rp__cuda_row_block(c) / c->threads; return (w->rows + per - 1) / per;
    case RP__CUDA_SHORT: per = (int64_t)RP__CUDA_BLOCK * c->vector; return (w->rows + per - 1) / per;
    case RP__CUDA_CLUSTER: return w->rows * c->down;
    case RP__CUDA_ROW_LOOP: return w->rows;
    case RP__CUDA_SCAN: return (w->rows + c->tile - 1) / c->tile;
    case RP__CUDA_COLUMN:
    case RP__CUDA_CLUSTER_COLUMN: return column_blocks(c, w->rows, 1);
    case RP__CUDA_SPLIT: return ends ? w->rows : w->rows * chunks;
    case RP__CUDA_SPLIT_COLUMN:
        return ends ? column_blocks(c, w->rows, 1) / c->parts : column_blocks(c, w->rows, chunks);
    case RP__CUDA_PARTIAL_ROW:
    case RP__CUDA_SCAN_TOTALS:
    case RP__CUDA_SCAN_PARTS: return w->rows * chunks;
    case RP__CUDA_PARTIAL_COLUMN: return column_blocks(c, w->rows, chunks);
    case RP__CUDA_FINISH: return (w->rows + c->tile - 1) / c->tile;
    default: return 0; /* filled elsewhere */
    }
}

static unsigned threads_of(const rp__cuda_class *c) {
    switch ((rp__cuda_template)c->template_) {
    case RP__CUDA_ROW:
    case RP__CUDA_CLUSTER: return rp__cuda_row_block(c);
    case RP__CUDA_SCAN: return (unsigned)c->tile * c->threads;
    case RP__CUDA_COLUMN:
    case RP__CUDA_CLUSTER_COLUMN:
    case RP__CUDA_PARTIAL_COLUMN:
    case RP__CUDA_SPLIT_COLUMN:
    case RP__CUDA_FINISH: return (unsigned)c->tile * c->down;
    default: return RP__CUDA_BLOCK;
    }
}

static rp_status too_many_blocks(const work *w) {
    return rp__fail(RP_ERROR_SHAPE, "%s: %lld rows are more than one CUDA launch takes",
                    w->space.op ? w->space.op : "kernel", (long long)w->rows);
}

/* What a launch does with partial results. */
static uint32_t partial_access(const rp__dag *dag, const rp__cuda_class *c) {
    switch ((rp__cuda_template)c->template_) {
    case RP__CUDA_FINISH:
    case RP__CUDA_SCAN_PARTS: return RP__READ;
    case RP__CUDA_SPLIT:
    case RP__CUDA_SPLIT_COLUMN:
        return c->phase == 0 ? RP__WRITE : c->phase + 1u == dag->n_phases ? RP__READ : RP__READ | RP__WRITE;
    default: return RP__WRITE;
    }
}

static rp_status fill(rp__device *d, rp__dag *dag, const work *w, rp__storage *partial, rp__launch_buffer *buffer,
                      rp__launch *out) {
    RP_TRY(rp__space_words(d, dag, &w->space, 0, buffer, out));
    RP_TRY(kernel_of(d, dag, &w->class_, &out->kernel));
    uint32_t n = rp__cuda_word_count(dag, &w->class_, 0), extra = n - RP__CUDA_EXTRA_WORDS;
    buffer->words[extra + RP__CUDA_WORD_POINTS] = (uint64_t)w->rows;
    buffer->words[extra + RP__CUDA_WORD_PARTIAL] = partial ? (uint64_t)(uintptr_t)partial->data : 0;
    buffer->words[extra + RP__CUDA_WORD_CHUNKS] = (uint64_t)((w->inner + RP__CUDA_CHUNK - 1) / RP__CUDA_CHUNK);
    out->n_words = n;
    if (partial) {
        if (out->n_slots >= RP__MAX_SLOTS) return rp__fail(RP_ERROR_INTERNAL, "%s: too many slots", w->space.op);
        buffer->slots[out->n_slots++] = (rp__slot){.word = extra + RP__CUDA_WORD_PARTIAL,
                                                   .access = partial_access(dag, &w->class_),
                                                   .storage = partial,
                                                   .buffer = -1,
                                                   .begin = 0,
                                                   .end = (int64_t)partial->bytes};
    }
    int64_t blocks = blocks_of(dag, w);
    if (blocks > INT32_MAX) return too_many_blocks(w);
    out->grid[0] = (uint32_t)blocks;
    out->grid[1] = out->grid[2] = 1;
    out->block[0] = threads_of(&w->class_);
    out->block[1] = out->block[2] = 1;
    out->shared_bytes = 0;
    return RP_OK;
}

static bool is_partial(const work *w) {
    const unsigned t = w->class_.template_;
    return t == RP__CUDA_PARTIAL_ROW || t == RP__CUDA_PARTIAL_COLUMN || t == RP__CUDA_SPLIT ||
           t == RP__CUDA_SPLIT_COLUMN || t == RP__CUDA_SCAN_TOTALS;
}

/* The second launch of a partial one: as many fold lanes as there are chunks, rows side by side as far as there are, a block of threads
 * for what they have to fold. */
static void set_finish(work *w) {
    rp__cuda_class *c = &w->class_;
    const int64_t chunks = (w->inner + RP__CUDA_CHUNK - 1) / RP__CUDA_CHUNK;
    c->template_ = RP__CUDA_FINISH;
    c->vector = 1;
    c->unit = 0;
    c->ragged = 0;
    c->unroll = 0;
    c->threads = (uint16_t)fold_lanes(chunks);
    c->full = chunks <= RP__CUDA_FOLD;
    c->tile = 32;
    while (c->tile > 1 && c->tile / 2 >= w->rows) c->tile /= 2;
    c->down = 1;
    while (2u * c->down <= (unsigned)c->threads * c->parts && 2u * c->down * c->tile <= RP__CUDA_BLOCK) c->down *= 2;
}

/* The class of the next launch of a row that takes several. False: there is none. */
static bool set_next(const rp__dag *dag, work *w) {
    rp__cuda_class *c = &w->class_;
    switch ((rp__cuda_template)c->template_) {
    case RP__CUDA_SPLIT:
    case RP__CUDA_SPLIT_COLUMN: return ++c->phase < dag->n_phases;
    case RP__CUDA_SCAN_TOTALS: c->template_ = RP__CUDA_SCAN_PARTS; return true;
    case RP__CUDA_PARTIAL_ROW:
    case RP__CUDA_PARTIAL_COLUMN: set_finish(w); return true;
    default: return false;
    }
}

/* One launch was asked for where two are faster: the same bits. */
static void set_single(const rp__dag *dag, work *w) {
    rp__cuda_class *c = &w->class_;
    c->parts = 1;
    c->tree = c->full = 0;
    if ((c->template_ == RP__CUDA_PARTIAL_COLUMN || c->template_ == RP__CUDA_SPLIT_COLUMN) &&
        w->inner <= RP__CUDA_CHUNK) {
        c->template_ = RP__CUDA_COLUMN;
        return;
    }
    c->template_ = RP__CUDA_ROW_LOOP;
    c->down = c->tile = c->unroll = c->once = 0;
    find_row_units(dag, &w->space, w->accesses, 4, c);
}

static rp_status bind_contract(rp__device *d, rp__dag *dag, const rp__space *space, rp__launch_buffer *buffer,
                               rp__launch *out) {
    rp__cuda_class c;
    RP_TRY(rp__cuda_contract_class(d, dag, space, buffer, out, &c));
    return c.template_ == RP__CUDA_CONTRACT ? kernel_of(d, dag, &c, &out->kernel) : RP_OK;
}

static rp_status bind(rp__device *d, rp__dag *dag, const rp__space *space, rp__launch_buffer *buffer, rp__launch *out) {
    work w;
    memset(out, 0, sizeof *out);
    if (dag->rest) return bind_contract(d, dag, space, buffer, out);
    RP_TRY(check(dag));
    prepare(d, dag, space, &w);
    if (w.rows == 0) return RP_OK;
    if (is_partial(&w)) set_single(dag, &w);
    return fill(d, dag, &w, NULL, buffer, out);
}

/* Few long rows: partial results by many blocks, then launches that fold them. */
static rp_status launch(rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *space) {
    work w;
    rp__launch l;
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    if (!buffer) return RP_ERROR_OUT_OF_MEMORY;
    if (dag->rest) return rp__loop_launch_one(d, s, dag, space);
    RP_TRY(check(dag));
    prepare(d, dag, space, &w);
    memset(&l, 0, sizeof l);
    if (w.rows == 0) return RP_OK;
    if (!is_partial(&w)) {
        RP_TRY(fill(d, dag, &w, NULL, buffer, &l));
        return rp__launch_on(s, &l);
    }
    size_t results = 0;
    for (unsigned k = 0; k < dag->n_nodes; k++)
        results += dag->nodes[k].op == RP__REDUCE || dag->nodes[k].op == RP__SCAN;
    size_t chunks = (size_t)((w.inner + RP__CUDA_CHUNK - 1) / RP__CUDA_CHUNK);
    const size_t parts =
        w.class_.template_ == RP__CUDA_SCAN_TOTALS ? (size_t)RP__CUDA_SCAN_TOTALS_A_CHUNK : w.class_.parts;
    rp__storage *partial = rp__storage_new(d, s, results * chunks * parts * (size_t)w.rows * sizeof(uint64_t));
    if (!partial) return RP_ERROR_OUT_OF_MEMORY;
    rp_status status;
    do {
        memset(&l, 0, sizeof l);
        status = fill(d, dag, &w, partial, buffer, &l);
        if (status == RP_OK) status = rp__launch_on(s, &l);
    } while (status == RP_OK && set_next(dag, &w));
    rp__storage_release(partial);
    return status;
}

static rp_status source(rp__device *d, rp__dag *dag, const rp__space *space, rp__text *out) {
    work w;
    char name[64];
    if (dag->rest) {
        rp__launch unused;
        rp__launch_buffer *buffer = rp__launch_buffer_get();
        if (!buffer) return RP_ERROR_OUT_OF_MEMORY;
        RP_TRY(rp__cuda_contract_class(d, dag, space, buffer, &unused, &w.class_));
        return w.class_.template_ == RP__CUDA_CONTRACT ? add_source(dag, &w.class_, name, out) : RP_OK;
    }
    RP_TRY(check(dag));
    prepare(d, dag, space, &w);
    do {
        RP_TRY(add_source(dag, &w.class_, name, out));
    } while (set_next(dag, &w));
    return RP_OK;
}

/* ---- many ---- */

/* Parameters of a kernel may take 32764 bytes on sm_70 and later since CUDA 12.1. */
enum { PARAMETER_WORDS = 32764 / 8 };

static bool many_accepts(const rp__dag *dag) {
    bool ok = !dag->random && !dag->checks && dag->n_phases == 1 && !dag->n_windows && !dag->scans;
    for (unsigned k = 0; k < dag->n_nodes; k++)
        ok = ok && dag->nodes[k].op != RP__IOTA &&
             !(dag->nodes[k].op == RP__LOAD && (dag->nodes[k].a != RP__NO_VAL || dag->nodes[k].b != RP__NO_VAL));
    for (unsigned k = 0; k < dag->n_stores; k++)
        ok = ok && dag->stores[k].offset == RP__NO_VAL && dag->stores[k].predicate == RP__NO_VAL &&
             dag->stores[k].mode == RP__STORE_SET;
    return ok;
}

static rp_status bind_many(rp__device *d, rp__dag *dag, const rp__space *shared, const rp__space_access *accesses,
                           const int64_t *extents, size_t n_groups, rp__launch_buffer *buffer, rp__launch *out) {
    unsigned n = dag->n_accesses, stride = 2u + n;
    size_t room = 4;
    rp__cuda_class c;
    memset(&c, 0, sizeof c);
    memset(out, 0, sizeof *out);
    while (room < n_groups) room *= 2;
    if (!many_accepts(dag) || room > UINT16_MAX || n_groups * n > RP__MAX_SLOTS ||
        dag->n_scalars + RP__CUDA_EXTRA_WORDS + room * stride > PARAMETER_WORDS)
        return RP_ERROR_UNAVAILABLE;
    c.template_ = RP__CUDA_MANY;
    c.n_outer = 1;
    c.problems = (uint16_t)room;
    unsigned widest = 1;
    for (unsigned k = 0; k < n; k++)
        if (rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype) > widest)
            widest = (unsigned)rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype);
    unsigned width = 16 / widest > RP__CUDA_MAX_VECTOR ? RP__CUDA_MAX_VECTOR : 16 / widest;
    int64_t points = 0;
    bool whole = true;
    c.broadcast = UINT64_MAX >> (64 - n); /* the same element for all points of a group: learning rates, step counts */
    for (size_t g = 0; g < n_groups; g++)
        for (unsigned k = 0; k < n; k++)
            if (accesses[g * n + k].stride[0] != 0) c.broadcast &= ~(UINT64_C(1) << k);
    for (size_t g = 0; g < n_groups; g++) {
        points += extents[g];
        whole = whole && extents[g] % width == 0;
        for (unsigned k = 0; k < n; k++) {
            const rp__space_access *a = &accesses[g * n + k];
            if (c.broadcast >> k & 1) continue;
            if (extents[g] > 1 && a->stride[0] != 1) return RP_ERROR_UNAVAILABLE;
            whole = whole && (uintptr_t)a->base % (rp__dtype_bytes((rp_dtype)dag->accesses[k].dtype) * width) == 0;
        }
    }
    c.vector = (uint8_t)(whole ? width : 1);
    for (unsigned k = 0; whole && k < n; k++)
        if (!(c.broadcast >> k & 1)) c.unit |= UINT64_C(1) << k;
    c.unroll = 4;
    while (c.unroll > 1 && points / ((int64_t)RP__CUDA_BLOCK * c.vector * c.unroll) < 8 * (int64_t)d->multiprocessors)
        c.unroll /= 2;
    RP_TRY(kernel_of(d, dag, &c, &out->kernel));
    for (unsigned k = 0; k < dag->n_scalars; k++)
        buffer->words[k] = rp__scalar_word(shared->scalars[k], rp__dag_scalar_dtype(dag, (uint16_t)k));
    uint32_t w = dag->n_scalars;
    uint64_t *count = &buffer->words[w + RP__CUDA_WORD_POINTS];
    buffer->words[w + RP__CUDA_WORD_PARTIAL] = 0;
    buffer->words[w + RP__CUDA_WORD_CHUNKS] = 0;
    w += RP__CUDA_EXTRA_WORDS;
    int64_t per = (int64_t)RP__CUDA_BLOCK * c.vector * c.unroll, block = 0;
    uint32_t n_slots = 0;
    *count = 0;
    for (size_t g = 0; g < n_groups; g++) {
        if (extents[g] == 0) continue;
        buffer->words[w] = (uint64_t)extents[g];
        buffer->words[w + 1] = (uint64_t)block;
        for (unsigned k = 0; k < n; k++) {
            const rp__space_access *a = &accesses[g * n + k];
            unsigned kind = dag->accesses[k].kind;
            buffer->words[w + 2 + k] = (uint64_t)(uintptr_t)a->base;
            buffer->slots[n_slots++] = (rp__slot){.word = w + 2 + k,
                                                  .access = kind == RP__ACCESS_READ    ? RP__READ
                                                            : kind == RP__ACCESS_WRITE ? RP__WRITE
                                                                                       : RP__READ | RP__WRITE,
                                                  .storage = a->storage,
                                                  .buffer = -1,
                                                  .begin = a->begin,
                                                  .end = a->end};
        }
        block += (extents[g] + per - 1) / per;
        w += stride;
        ++*count;
    }
    uint32_t n_words = rp__cuda_word_count(dag, &c, (uint32_t)room);
    while (w < n_words) buffer->words[w++] = 0;
    if (block == 0) {
        out->kernel = NULL;
        return RP_OK;
    }
    if (block > INT32_MAX) return rp__fail(RP_ERROR_SHAPE, "%s: too many elements for one CUDA launch", shared->op);
    out->words = buffer->words;
    out->slots = buffer->slots;
    out->n_words = n_words;
    out->n_slots = n_slots;
    out->op = shared->op;
    out->site = shared->site;
    out->grid[0] = (uint32_t)block;
    out->block[0] = RP__CUDA_BLOCK;
    out->grid[1] = out->grid[2] = out->block[1] = out->block[2] = 1;
    return RP_OK;
}

/* Points of spaces that each are two dims at the most: parts of a cat. */
static rp_status bind_parts(rp__device *d, rp__dag *dag, const rp__space *const *spaces, size_t n_parts,
                            rp__launch_buffer *buffer, rp__launch *out) {
    const unsigned n = dag->n_accesses;
    rp__cuda_class c;
    memset(&c, 0, sizeof c);
    memset(out, 0, sizeof *out);
    c.template_ = RP__CUDA_MANY;
    c.n_outer = 2;
    c.problems = 4;
    while (c.problems < n_parts) c.problems = (uint16_t)(2 * c.problems);
    const uint32_t stride = rp__cuda_group_words(dag, &c);
    if (!many_accepts(dag) || n_parts * n > RP__MAX_SLOTS ||
        RP__CUDA_EXTRA_WORDS + c.problems * stride > PARAMETER_WORDS)
        return RP_ERROR_UNAVAILABLE;
    unsigned widest = 1;
    for (unsigned k = 0; k < n; k++)
        if (access_bytes(dag, k) > widest) widest = access_bytes(dag, k);
    unsigned width = 16 / widest > RP__CUDA_MAX_VECTOR ? RP__CUDA_MAX_VECTOR : 16 / widest;
    int64_t points = 0;
    for (int pass = 0; pass < 2; pass++) { /* the class, then the words */
        int64_t block = 0;
        uint32_t w = RP__CUDA_EXTRA_WORDS, n_slots = 0;
        uint64_t groups = 0;
        for (size_t g = 0; g < n_parts; g++) {
            rp__space s = *spaces[g];
            rp__space_access a[RP__DAG_MAX_ACCESSES];
            memcpy(a, s.accesses, n * sizeof *a);
            s.accesses = a;
            rp__space_collapse(dag, &s, a);
            const unsigned dims = rp__space_dims(&s);
            if (dims > 2) return RP_ERROR_UNAVAILABLE;
            c.wide = c.wide || is_wide(dag, &s, a);
            order_points(dag, &s, a);
            const int64_t along = dims ? s.extent[dims - 1] : 1, all = product(s.extent, dims);
            if (all == 0) continue;
            if (pass == 0) {
                for (unsigned k = 0; k < n; k++)
                    while (width > 1 && (along % width || dims == 0 || !is_unit(dag, &s, a, k, dims - 1, width)))
                        width /= 2;
                /* across memory a launch of its own has a tile */
                for (unsigned k = 0; k < n && dims; k++)
                    if (a[k].stride[dims - 1] > 1 && dims == 2 && a[k].stride[0] == 1) return RP_ERROR_UNAVAILABLE;
                points += all;
                continue;
            }
            const int64_t per = (int64_t)RP__CUDA_BLOCK * c.vector * c.unroll;
            uint64_t *words = &buffer->words[w];
            words[0] = (uint64_t)all;
            words[1] = (uint64_t)block;
            words[2] = (uint64_t)along;
            for (unsigned k = 0; k < n; k++) {
                const unsigned kind = dag->accesses[k].kind;
                words[3 + k] = (uint64_t)(uintptr_t)a[k].base;
                words[3 + n + 2 * k] = (uint64_t)(dims == 2 ? a[k].stride[0] : 0);
                words[3 + n + 2 * k + 1] = (uint64_t)(dims ? a[k].stride[dims - 1] : 0);
                buffer->slots[n_slots++] = (rp__slot){.word = w + 3 + k,
                                                      .access = kind == RP__ACCESS_READ    ? RP__READ
                                                                : kind == RP__ACCESS_WRITE ? RP__WRITE
                                                                                           : RP__READ | RP__WRITE,
                                                      .storage = a[k].storage,
                                                      .buffer = -1,
                                                      .begin = a[k].begin,
                                                      .end = a[k].end};
            }
            block += (all + per - 1) / per;
            if (block > INT32_MAX) return RP_ERROR_UNAVAILABLE;
            w += stride;
            groups++;
        }
        if (pass == 0) {
            if (points == 0) return RP_OK;
            c.vector = (uint8_t)width;
            for (unsigned k = 0; k < n && width > 1; k++) c.unit |= UINT64_C(1) << k;
            c.unroll = width > 1 ? 4 : 8;
            while (c.unroll > 1 &&
                   points / ((int64_t)RP__CUDA_BLOCK * c.vector * c.unroll) < 8 * (int64_t)d->multiprocessors)
                c.unroll /= 2;
            continue;
        }
        RP_TRY(kernel_of(d, dag, &c, &out->kernel));
        buffer->words[RP__CUDA_WORD_POINTS] = groups;
        buffer->words[RP__CUDA_WORD_PARTIAL] = buffer->words[RP__CUDA_WORD_CHUNKS] = 0;
        out->n_words = rp__cuda_word_count(dag, &c, c.problems);
        while (w < out->n_words) buffer->words[w++] = 0;
        out->words = buffer->words;
        out->slots = buffer->slots;
        out->n_slots = n_slots;
        out->op = spaces[0]->op;
        out->site = spaces[0]->site;
        out->grid[0] = (uint32_t)block;
        out->block[0] = RP__CUDA_BLOCK;
        out->grid[1] = out->grid[2] = out->block[1] = out->block[2] = 1;
    }
    return RP_OK;
}

static unsigned freedoms(void) { return (1u << RP__FREE_COUNT) - 1u; }

const rp__loop_backend rp__cuda_loops = {.bind = bind,
                                         .freedoms = freedoms,
                                         .schedules = schedules,
                                         .schedule_text = schedule_text,
                                         .machine = machine,
                                         .launch = launch,
                                         .source = source,
                                         .destroy = destroy,
                                         .bind_many = bind_many,
                                         .bind_parts = bind_parts,
                                         .batch_begin = rp__nvrtc_batch_begin,
                                         .batch_end = rp__nvrtc_batch_end};
