/* The CPU's loop backend: finds or makes the programs of a DAG, chooses the walk of a space and fills the launch. The words are
   rp__cpu_header and then the canonical words (loop.h); multi-tensor launches have a layout of their own, see bind_many.
   What depends on sizes (tile length, keeping or recomputing) is chosen inside the kernel, so that a re-pointed or re-sized
   launch needs no new kernel. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "core/thread.h"
#include "device/device.h"
#include "kernel/contract.h"
#include "kernel/cpu/contract.h"
#include "kernel/cpu/interp_parts.h"
#include "kernel/cpu/jit.h"
#include "kernel/cpu/points.h"
#include "kernel/cpu/program.h"
#include "kernel/relax.h"

/* dag->backend[RP_DEVICE_CPU]. */
typedef struct cpu_dag {
    bool elements; /* no reductions and no row stores: one walk over all dims */
    _Atomic(rp__kernel *) kernel;
} cpu_dag;
static rp__mutex lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_lock, &lock, 1)

static const rp__program *program_of(const rp__kernel *k) {
    const rp__cpu_loop *loop = k->payload;
    return loop->programs[RP__PLAN_ELEMENTS] ? loop->programs[RP__PLAN_ELEMENTS] : loop->programs[RP__PLAN_RECOMPUTE];
}
static void kernel_destroy(rp__kernel *k) {
    rp__cpu_loop *loop = k->payload;
    for (int i = 0; i < RP__PLAN_COUNT; i++) {
        rp__program_release(loop->programs[i]);
        rp__program_release(loop->grouped[i]);
    }
    rp__jit_forget(loop);
    rp__free(loop);
    rp__free(k);
}
static rp__kernel *kernel_new(const rp__dag *dag, bool elements) {
    const rp__tiles *tiles = rp__tiles_current();
    rp__kernel *k = rp__calloc(1, sizeof *k);
    rp__cpu_loop *loop = rp__calloc(1, sizeof *loop);
    if (!k || !loop || rp__jit_begin(loop) != RP_OK) {
        rp__free(k);
        rp__free(loop);
        rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: loop kernel");
        return NULL;
    }
    atomic_init(&k->refs, 1);
    k->kind = RP__KERNEL_CPU;
    k->name = elements ? "elements" : "rows";
    atomic_init(&k->cpu, rp__interpret);
    k->payload = loop;
    k->destroy = kernel_destroy;
    bool ok;
    if (elements) {
        ok = (loop->programs[RP__PLAN_ELEMENTS] = rp__program_new(dag, RP__PLAN_ELEMENTS, tiles, false)) != NULL;
    } else {
        ok = (loop->programs[RP__PLAN_RECOMPUTE] = rp__program_new(dag, RP__PLAN_RECOMPUTE, tiles, false)) != NULL;
        if (ok && loop->programs[RP__PLAN_RECOMPUTE]->n_phases > 1) {
            ok = (loop->programs[RP__PLAN_KEEP] = rp__program_new(dag, RP__PLAN_KEEP, tiles, false)) != NULL;
            if (ok && !loop->programs[RP__PLAN_KEEP]->kept_bytes) { /* the same program */
                rp__program_release(loop->programs[RP__PLAN_KEEP]);
                loop->programs[RP__PLAN_KEEP] = NULL;
            }
        }
    }
    if (!ok) {
        kernel_destroy(k);
        return NULL;
    }
    rp__line_adopt(loop, dag, tiles);
    k->key = loop->key = program_of(k)->key;
    return k;
}
/* The DAG's kernel for the current tables, borrowed from the DAG. */
static rp__kernel *kernel_slow(rp__dag *dag) {
    rp__kernel *k = NULL;
    rp__lock(&lock);
    cpu_dag *c = dag->backend[RP_DEVICE_CPU];
    if (!c) {
        c = rp__calloc(1, sizeof *c);
        if (!c) {
            rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: loop kernel");
            goto done;
        }
        c->elements = dag->n_stores > 0 && !dag->ordered;
        for (unsigned i = 0; i < dag->n_stores; i++)
            c->elements = c->elements && !rp__dag_is_row(dag, dag->stores[i].axes);
        atomic_init(&c->kernel, NULL);
        __atomic_store_n(&dag->backend[RP_DEVICE_CPU], c, __ATOMIC_RELEASE);
    }
    k = atomic_load_explicit(&c->kernel, memory_order_acquire);
    if (k && program_of(k)->tiles == rp__tiles_current()) goto done;
    rp__kernel *old = k;
    k = kernel_new(dag, c->elements);
    if (!k) goto done;
    atomic_store_explicit(&c->kernel, k, memory_order_release);
    if (old) rp__kernel_release(old);
done:
    rp__unlock(&lock);
    return k;
}
static rp__kernel *kernel_of(rp__dag *dag);
/* A DAG with a CONTRACT: a kernel around those of its parts. */
static rp__kernel *contract_of(rp__dag *dag) {
    rp__kernel *parts[RP__CONTRACT_PARTS] = {NULL}, *k = NULL;
    for (unsigned i = 0; i < RP__CONTRACT_PARTS; i++) {
        if (!rp__contract_part(dag, i)) continue;
        parts[i] = kernel_of(rp__contract_part(dag, i));
        if (!parts[i]) return NULL;
    }
    rp__lock(&lock);
    cpu_dag *c = dag->backend[RP_DEVICE_CPU];
    if (!c) c = rp__calloc(1, sizeof *c);
    if (!c) {
        (void)RP__OOM("a loop kernel");
    } else {
        dag->backend[RP_DEVICE_CPU] = c;
        k = atomic_load_explicit(&c->kernel, memory_order_relaxed);
        if (!k || memcmp(rp__cpu_contract_parts(k), parts, sizeof parts) != 0) {
            rp__kernel *fresh = rp__cpu_contract_kernel(dag, parts);
            if (fresh) {
                atomic_store_explicit(&c->kernel, fresh, memory_order_release);
                if (k) rp__kernel_release(k);
            }
            k = fresh;
        }
    }
    rp__unlock(&lock);
    return k;
}
static rp__kernel *kernel_of(rp__dag *dag) {
    cpu_dag *c = __atomic_load_n(&dag->backend[RP_DEVICE_CPU], __ATOMIC_ACQUIRE);
    rp__kernel *k = c ? atomic_load_explicit(&c->kernel, memory_order_acquire) : NULL;
    if (RP__LIKELY(k && program_of(k)->tiles == rp__tiles_current())) return k;
    return kernel_slow(dag);
}
rp__kernel *rp__cpu_kernel(rp__dag *dag) { return kernel_of(dag); }
rp__kernel *rp__cpu_kernel_made(const rp__dag *dag) {
    cpu_dag *c = __atomic_load_n(&dag->backend[RP_DEVICE_CPU], __ATOMIC_ACQUIRE);
    return c ? atomic_load_explicit(&c->kernel, memory_order_acquire) : NULL;
}
static void destroy(rp__dag *dag) {
    cpu_dag *c = dag->backend[RP_DEVICE_CPU];
    dag->backend[RP_DEVICE_CPU] = NULL;
    if (!c) return;
    rp__kernel *k = atomic_load_explicit(&c->kernel, memory_order_relaxed);
    if (k) rp__kernel_release(k);
    rp__free(c);
}

/* ---- walks and slices ----------------------------------------------------------------------------------------------- */

enum {
    SLICE_CYCLES = 1 << 17, /* work of a slice: a few times the cost of handing it to another thread */
    SHORT_ROW = 32,         /* rows shorter than this always go across: a row's fixed cost would dominate */
    SHORT_TILES = 128,
    SHORT_SCANS = 64,
    MAX_SLICES = 512,
    LONG_WINDOW = 1024 /* rows up to here go across where planes share their places */
};

/* Rows shorter than this go across, too, where tiles serve them for good: a tile along has one row, and each of its phases a call. A walk that
   is recorded stays, so that a line function which may yet be compiled counts. */
static int64_t short_tiles(const rp__dag *dag, const rp__kernel *k) {
    const rp__cpu_loop *loop = k->payload;
    const rp__program *p = program_of(k);
    const bool line = atomic_load_explicit(&loop->line[p->plan], memory_order_relaxed) != NULL;
    return line || (rp__jit_may(loop) && rp__line_fits(dag, p)) ? 0 : dag->scans ? SHORT_SCANS : SHORT_TILES;
}
/* Vectors over rows pay when more accesses are contiguous over rows than along them. */
static rp__walk walk_of(const rp__dag *dag, const rp__space *s, int64_t rows, int64_t row_len, const rp__kernel *k) {
    if (rows <= 1) return RP__WALK_ALONG;
    if (row_len < SHORT_ROW || (rows >= SHORT_ROW && row_len < short_tiles(dag, k))) return RP__WALK_ACROSS;
    const unsigned n_inner = rp__space_inner(dag, s), n_outer = rp__space_outer(dag, s);
    int along = 0, across = 0;
    for (unsigned a = 0; a < dag->n_accesses; a++) {
        if (rp__dag_is_row(dag, dag->accesses[a].axes) || dag->accesses[a].kind == RP__ACCESS_IOTA) continue;
        if (n_inner && rp__space_step(dag, s, s->accesses, a, n_outer + n_inner - 1u) == 1)
            along++;
        else if (n_outer && rp__space_step(dag, s, s->accesses, a, n_outer - 1u) == 1)
            across++;
    }
    return across > along ? RP__WALK_ACROSS : RP__WALK_ALONG;
}
static int64_t slice_of(int64_t items, uint32_t cost, int64_t elements_an_item, int64_t multiple) {
    int64_t grain = SLICE_CYCLES / ((int64_t)cost + 1) / (elements_an_item > 0 ? elements_an_item : 1);
    if (grain < items / MAX_SLICES) grain = items / MAX_SLICES;
    grain = grain / multiple * multiple;
    return grain < multiple ? multiple : grain;
}
/* As a schedule wants it. */
static int64_t slice_for(const rp__space *s, int64_t grain, int64_t multiple) {
    if (!s->how || !s->how->grain) return grain;
    const int by = (int)s->how->grain - 8;
    if (by < 0) return grain >> -by < multiple ? multiple : (grain >> -by) / multiple * multiple;
    return grain > INT64_MAX >> (by + 1) ? grain : grain << by;
}
static uint64_t past_bits(const rp__space *s) { return (uint64_t)(s->how ? s->how->past & 3u : 0) << RP__CPU_PAST; }

enum { BLOCK_EXTENT = 16, BLOCK_ELEMENTS = 4096 }; /* below these a transpose stays in the first-level cache anyway */

/* The dim along which an access is contiguous that strides along the last dim: walking both in blocks uses whole cache lines of
   either. -1: none. */
static int block_dim(const rp__dag *dag, const rp__space *s, int64_t elements) {
    const int dims = (int)rp__space_dims(s);
    if (dims < 2 || elements < BLOCK_ELEMENTS || dag->n_windows || s->extent[dims - 1] < BLOCK_EXTENT) return -1;
    for (unsigned a = 0; a < dag->n_accesses; a++) {
        const int64_t *stride = s->accesses[a].stride;
        if (dag->accesses[a].kind == RP__ACCESS_IOTA ||
            (stride[dims - 1] < BLOCK_EXTENT && stride[dims - 1] > -BLOCK_EXTENT))
            continue;
        for (int k = dims - 2; k >= 0; k--) {
            if (stride[k] == 1 && s->extent[k] >= BLOCK_EXTENT) return k;
        }
    }
    return -1;
}
/* The space with dim k as the last one; accesses must have room. The order of elements does not matter to their values. */
static void make_last(rp__space *s, rp__space_access *accesses, int k) {
    const int dims = (int)rp__space_dims(s);
    int64_t extent = s->extent[k];
    memmove(&s->extent[k], &s->extent[k + 1], (size_t)(dims - 1 - k) * sizeof extent);
    s->extent[dims - 1] = extent;
    for (unsigned a = 0; a < s->n_accesses; a++) {
        int64_t *stride = accesses[a].stride, own = stride[k];
        memmove(&stride[k], &stride[k + 1], (size_t)(dims - 1 - k) * sizeof own);
        stride[dims - 1] = own;
    }
    s->accesses = accesses;
}

static __attribute__((noinline)) rp_status bind_blocks(rp__device *d, rp__dag *dag, rp__kernel *k,
                                                       const rp__space *space, int dim, rp__launch_buffer *buffer,
                                                       rp__launch *out) {
    rp__space s = *space;
    rp__space_access accesses[RP__DAG_MAX_ACCESSES];
    if (s.n_accesses > RP__DAG_MAX_ACCESSES) return rp__fail(RP_ERROR_INTERNAL, "loop kernel: too many accesses");
    memcpy(accesses, space->accesses, s.n_accesses * sizeof *accesses);
    make_last(&s, accesses, dim);
    const unsigned last = rp__space_dims(&s) - 1u;
    int64_t items = 1;
    for (unsigned i = 0; i < last; i++) items *= s.extent[i];
    RP_TRY(rp__space_words(d, dag, &s, 1, buffer, out));
    buffer->words[0] = rp__cpu_header(RP__WALK_BLOCKS, last, 1);
    out->items = items;
    out->grain = slice_for(space, slice_of(items, program_of(k)->cost, s.extent[last], 128), 128);
    out->kernel = k;
    rp__jit_count(dag, k, items * s.extent[last]);
    return RP_OK;
}

/* A line function of the library is all that a compiler could add. */
static bool served_by_line(const rp__kernel *k, const rp__dag *dag, const rp__space *space, rp__walk walk) {
    const rp__cpu_loop *loop = k->payload;
    if (walk != RP__WALK_LONG && walk != RP__WALK_ELEMENTS && program_of(k)->largest.phase)
        return true; /* nor has a search, run_walk's, a use for one */
    const unsigned dims = rp__space_dims(space);
    const bool line = rp__space_inner(dag, space) <= 1 && dims <= 2 &&
                      (walk == RP__WALK_ELEMENTS ? dims <= 1
                       : walk == RP__WALK_LONG   ? atomic_load_explicit(&loop->chunk[0], memory_order_relaxed) != NULL
                                                 : walk == RP__WALK_ALONG);
    return line && atomic_load_explicit(&loop->line[program_of(k)->plan], memory_order_relaxed);
}

static rp__dims dims_of(const rp__program *p, const uint64_t *words) {
    rp__dims x = {.n_outer = (unsigned)(words[0] >> 8 & 0xff)};
    x.dims = x.n_outer + (unsigned)(words[0] >> 16 & 0xff);
    x.extent = (const int64_t *)(words + 1 + p->n_accesses);
    x.stride = x.extent + x.dims;
    x.windows = x.stride + (size_t)x.dims * p->n_accesses;
    return x;
}
static bool planes_of(const rp__program *p, const uint64_t *words, rp__planes *out) {
    const rp__dims x = dims_of(p, words);
    return !p->serial && rp__interp_planes(p, &x, out);
}
static bool in_planes(const rp__program *p, const uint64_t *words) {
    rp__planes to;
    return planes_of(p, words, &to);
}
/* Slices of whole planes, so many that what planes share counts for little; of whole points, where lanes lie side by side. */
static int64_t whole_planes(const rp__program *p, const uint64_t *words, int64_t grain) {
    enum { MANY = 16, PARTS = 8, MANY_POINTS = 64 };
    rp__planes to;
    if (!planes_of(p, words, &to)) return grain;
    if (to.width) return (grain > MANY_POINTS * to.width ? grain : MANY_POINTS * to.width) / to.width * to.width;
    int64_t planes = to.planes / PARTS < MANY ? to.planes / PARTS : MANY;
    if (planes < 4) planes = 4;
    if (grain / to.points > planes) planes = grain / to.points;
    return planes * to.points;
}
/* Points: no reductions, no row stores. */
static rp_status bind_points(rp__device *d, rp__dag *dag, rp__kernel *k, const rp__space *space,
                             rp__launch_buffer *buffer, rp__launch *out) {
    const rp__program *p = program_of(k);
    const unsigned dims = rp__space_dims(space);
    uint64_t count = 1; /* beyond 64 bits only where it is 0 in the end */
    for (unsigned i = 0; i < dims; i++) count *= (uint64_t)space->extent[i];
    const int64_t items = (int64_t)count;
    if (!items) return RP_OK;
    const bool flat = p->serial || (space->how && space->how->flat);
    const int block = flat ? -1 : block_dim(dag, space, items);
    if (block >= 0) return bind_blocks(d, dag, k, space, block, buffer, out);
    out->items = items;
    out->grain = p->serial ? items : slice_for(space, slice_of(items, p->cost, 1, RP__MANY_BLOCK), RP__MANY_BLOCK);
    RP_TRY(rp__space_words(d, dag, space, 1, buffer, out));
    buffer->words[0] = rp__cpu_header(RP__WALK_ELEMENTS, dims, 0) | past_bits(space);
    if (p->places && out->grain < out->items) out->grain = whole_planes(p, buffer->words, out->grain);
    out->kernel = k;
    if (!served_by_line(k, dag, space, RP__WALK_ELEMENTS)) rp__jit_count(dag, k, items);
    return RP_OK;
}
/* Slices across end where stretches of rows do, if they hold one. */
static int64_t whole_stretches(const rp__program *p, const uint64_t *words, int64_t grain) {
    const rp__dims x = dims_of(p, words);
    int64_t rows = 1;
    (void)rp__interp_stretch(p, x.n_outer, x.dims, x.extent, x.stride, &rows);
    return grain < rows ? grain : grain / rows * rows;
}
/* Are there operands whose elements lie apart along a row, which then is better put together whole, by one thread, than chunk by chunk? */
static bool lies_apart(const rp__program *p, const uint64_t *words, int64_t row_len) {
    const rp__dims x = dims_of(p, words);
    rp__line_pieces pieces;
    rp__line line;
    int64_t bytes = 0;
    if (!rp__line_apart(p, x.n_outer, x.dims, x.extent, x.stride, &pieces, &line)) return false;
    for (uint64_t left = line.apart; left; left &= left - 1) {
        const rp__line_stretches *s = &pieces.lie[__builtin_ctzll(left)];
        bytes += s->still || s->step == 1 ? 0 : row_len * s->size;
    }
    return bytes && bytes < RP__INTERP_WIDE / 2;
}
static rp_status bind_rows(rp__device *d, rp__dag *dag, rp__kernel *k, const rp__space *space,
                           rp__launch_buffer *buffer, rp__launch *out) {
    const rp__program *p = program_of(k);
    const unsigned n_outer = rp__space_outer(dag, space), n_inner = rp__space_inner(dag, space);
    uint64_t counts[2] = {1, 1}; /* beyond 64 bits only where one of them is 0 */
    for (unsigned i = 0; i < n_outer + n_inner; i++) counts[i >= n_outer] *= (uint64_t)space->extent[i];
    const int64_t rows = (int64_t)counts[0], row_len = (int64_t)counts[1];
    bool row_stores = false;
    for (unsigned i = 0; i < dag->n_stores; i++) row_stores = row_stores || rp__dag_is_row(dag, dag->stores[i].axes);
    if (!rows || (!row_len && !row_stores)) return RP_OK;
    rp__walk walk = walk_of(dag, space, rows, row_len, k);
    const unsigned wish = space->how ? space->how->path : 0;
    if (rows > 1 && (wish == 1 + RP__WALK_ALONG || wish == 1 + RP__WALK_ACROSS)) walk = (rp__walk)(wish - 1);
    if (wish != 1 + RP__WALK_ALONG && walk == RP__WALK_ALONG && rows < 16 && row_len >= 4 * RP__CHUNK && !dag->scans)
        walk = RP__WALK_LONG;
    out->items = walk == RP__WALK_LONG ? 1 : rows;
    const int64_t multiple = walk == RP__WALK_ACROSS ? 64 : 1;
    out->grain = slice_for(space, slice_of(rows, p->cost, row_len, multiple), multiple);
    if (space->lanes) {
        walk = RP__WALK_LANES;
        out->items = RP__LANES;
        out->grain = slice_of(RP__LANES, p->cost, row_len * ((rows + RP__LANES - 1) / RP__LANES), 1);
    } else if (p->serial) {
        out->grain = out->items;
    }
    RP_TRY(rp__space_words(d, dag, space, 1, buffer, out));
    buffer->words[0] = rp__cpu_header(walk, n_outer, n_inner) | past_bits(space);
    /* a row walked so is some four times as fast, by one thread */
    if (walk == RP__WALK_LONG && !wish && rows > 1 && 4 * rows >= rp_num_threads() &&
        lies_apart(p, buffer->words, row_len)) {
        walk = RP__WALK_ALONG;
        buffer->words[0] = rp__cpu_header(walk, n_outer, n_inner) | past_bits(space);
        out->items = rows;
    }
    if (walk == RP__WALK_ALONG && !wish && row_len <= LONG_WINDOW && in_planes(p, buffer->words)) {
        walk = RP__WALK_ACROSS;
        buffer->words[0] = rp__cpu_header(walk, n_outer, n_inner) | past_bits(space);
        out->grain = slice_for(space, slice_of(rows, p->cost, row_len, 64), 64);
    }
    if (walk == RP__WALK_ACROSS && out->grain < out->items)
        out->grain = whole_planes(p, buffer->words, whole_stretches(p, buffer->words, out->grain));
    out->kernel = k;
    if (!served_by_line(k, dag, space, walk)) rp__jit_count(dag, k, rows * row_len);
    return RP_OK;
}
/* Stores that add take elements in their order. */
static bool any_order(const rp__dag *dag, const rp__kernel *k, const rp__space *space) {
    return !program_of(k)->serial && !space->lanes && rp__space_outer(dag, space) > 1;
}
/* The space as it is walked. */
static const rp__space *in_order(const rp__dag *dag, const rp__kernel *k, const rp__space *space, rp__points *room) {
    const rp__space *ordered = any_order(dag, k, space) ? rp__points_in_order(dag, space, room) : NULL;
    return ordered ? ordered : space;
}
static __attribute__((noinline)) rp_status bind_in_order(rp__device *d, rp__dag *dag, rp__kernel *k,
                                                         const rp__space *space, rp__launch_buffer *buffer,
                                                         rp__launch *out) {
    rp__points points;
    space = in_order(dag, k, space, &points);
    return program_of(k)->plan == RP__PLAN_ELEMENTS ? bind_points(d, dag, k, space, buffer, out)
                                                    : bind_rows(d, dag, k, space, buffer, out);
}

static rp_status bind(rp__device *d, rp__dag *dag, const rp__space *space, rp__launch_buffer *buffer, rp__launch *out) {
    out->kernel = NULL;
    if (dag->rest) {
        rp__kernel *contract = contract_of(dag);
        return contract ? rp__cpu_contract_bind(d, dag, space, contract, buffer, out) : rp_error_status();
    }
    if (!dag->rows) return rp__fail(RP_ERROR_INTERNAL, "loop kernel: reductions over different axes");
    rp__kernel *k = kernel_of(dag);
    if (!k) return rp_error_status();
    const bool points = program_of(k)->plan == RP__PLAN_ELEMENTS;
    if (points && space->lanes) return rp__fail(RP_ERROR_INTERNAL, "loop kernel: rows by lanes without rows");
    if (any_order(dag, k, space)) return bind_in_order(d, dag, k, space, buffer, out);
    return points ? bind_points(d, dag, k, space, buffer, out) : bind_rows(d, dag, k, space, buffer, out);
}

/* Words: see run_many in interp.c. Items are blocks of RP__MANY_BLOCK elements; a group starts at an item. */
static rp_status bind_many(rp__device *d, rp__dag *dag, const rp__space *shared, const rp__space_access *accesses,
                           const int64_t *extents, size_t n_groups, rp__launch_buffer *buffer, rp__launch *out) {
    out->kernel = NULL;
    const size_t n = dag->n_accesses;
    const size_t need = 1 + (n_groups + 1) + n_groups + 2 * n_groups * n + dag->n_scalars + 3u * dag->n_draws + 2;
    if (need > RP__MAX_WORDS || n_groups * n > RP__MAX_SLOTS) return RP_ERROR_UNAVAILABLE;
    rp__kernel *k = kernel_of(dag);
    if (!k) return rp_error_status();
    const rp__program *p = program_of(k);
    if (p->plan != RP__PLAN_ELEMENTS || p->n_windows || shared->n_scalars < dag->n_scalars || dag->n_draws) {
        return rp__fail(RP_ERROR_INTERNAL,
                        "loop kernel: a launch over many tensors takes no reductions, row stores or draws");
    }
    uint64_t *w = buffer->words, *at = w + 1;
    uint64_t items = 0;
    w[0] = rp__cpu_header(RP__WALK_MANY, 1, 0) | (uint64_t)n_groups << 32;
    for (size_t g = 0; g < n_groups; g++) {
        *at++ = items;
        items += (uint64_t)(extents[g] + RP__MANY_BLOCK - 1) / RP__MANY_BLOCK;
    }
    *at++ = items;
    for (size_t g = 0; g < n_groups; g++) *at++ = (uint64_t)extents[g];
    uint32_t n_slots = 0;
    for (size_t i = 0; i < n_groups * n; i++) {
        const rp__access *a = &dag->accesses[i % n];
        if (a->kind == RP__ACCESS_IOTA) {
            *at++ = (uint64_t)accesses[i].iota_base;
            continue;
        }
        const uint32_t access = a->kind == RP__ACCESS_READ    ? RP__READ
                                : a->kind == RP__ACCESS_WRITE ? RP__WRITE
                                                              : RP__READ | RP__WRITE;
        buffer->slots[n_slots++] = (rp__slot){.word = (uint32_t)(at - w),
                                              .access = access,
                                              .storage = accesses[i].storage,
                                              .buffer = -1,
                                              .begin = accesses[i].begin,
                                              .end = accesses[i].end};
        *at++ = (uint64_t)(uintptr_t)accesses[i].base;
    }
    for (size_t i = 0; i < n_groups * n; i++) *at++ = (uint64_t)accesses[i].stride[0];
    for (unsigned i = 0; i < dag->n_scalars; i++) {
        *at++ = rp__scalar_word(shared->scalars[i], (rp_dtype)dag->scalar_dtypes[i]);
    }
    if (dag->checks) {
        *at++ = (uint64_t)(uintptr_t)d->errors;
        *at++ = rp__error_tag(shared->op, shared->site);
    }
    if (!items) return RP_OK;
    out->words = w;
    out->n_words = (uint32_t)(at - w);
    out->slots = buffer->slots;
    out->n_slots = n_slots;
    out->op = shared->op;
    out->site = shared->site;
    out->items = (int64_t)items;
    out->grain = p->serial ? out->items : slice_of(out->items, p->cost, RP__MANY_BLOCK, 1);
    out->kernel = k;
    const rp__cpu_loop *loop = k->payload;
    if (!atomic_load_explicit(&loop->line[p->plan], memory_order_relaxed))
        rp__jit_count(dag, k, out->items * RP__MANY_BLOCK);
    return RP_OK;
}

static rp_status source(rp__device *d, rp__dag *dag, const rp__space *space, rp__text *out) {
    (void)d;
    (void)space;
    if (dag->rest) dag = dag->rest; /* the product itself is no emitted text */
    rp__kernel *k = kernel_of(dag);
    if (!k) return rp_error_status();
    return rp__jit_source(dag, k, out);
}

/* A program that the library carries compiled needs no more. */
static void hot(rp__dag *dag, bool wait) {
    for (unsigned i = 1; i < RP__CONTRACT_PARTS && dag->rest; i++)
        if (rp__contract_part(dag, i)) hot(rp__contract_part(dag, i), wait);
    if (dag->rest) dag = dag->rest;
    const rp__kernel *k = rp__cpu_kernel_made(dag);
    const rp__cpu_loop *loop = k ? k->payload : NULL;
    if (loop && !atomic_load_explicit(&loop->line[program_of(k)->plan], memory_order_relaxed))
        (void)rp__jit_request(dag, wait);
}

static const char *fault(const rp__dag *dag) { return rp__jit_fault(dag->rest ? dag->rest : dag); }

/* Tiny launches over contiguous elements that nobody records go straight to their line function: the rest of their cost is not
   worth a tenth of what the words and slots of a record take. */
static bool launch_flat(rp__device *d, rp_stream *s, rp__dag *dag, const rp__flat *flat) {
    (void)d;
    if (flat->n > RP__MANY_BLOCK || !rp__launch_runs_at_once(s)) return false;
    const rp__kernel *k = kernel_of(dag);
    return k && rp__line_run_flat(k->payload, dag, flat);
}
static bool flat_of(const rp__dag *dag, const rp__space *space, rp__flat *flat) {
    const unsigned dims = rp__space_dims(space);
    const bool one = dims == 0;
    if (dag->rest || dims > 1 || dag->n_windows || rp__space_inner(dag, space) ||
        (!one && (space->extent[0] > RP__MANY_BLOCK || space->extent[0] < 1)) || space->n_accesses > RP__FLAT_ACCESSES)
        return false;
    flat->n = one ? 1 : space->extent[0];
    flat->still = 0;
    for (unsigned a = 0; a < space->n_accesses; a++) {
        const rp__space_access *x = &space->accesses[a];
        flat->base[a] = x->base;
        if (flat->n == 1 || x->stride[0] == 1) continue;
        if (x->stride[0] != 0) return false;
        flat->still |= UINT64_C(1) << a;
    }
    flat->n_accesses = space->n_accesses;
    flat->n_scalars = space->n_scalars;
    flat->scalars = space->scalars;
    return true;
}
static rp_status launch(rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *space) {
    rp__flat flat; /* has no schedule */
    return flat_of(dag, space, &flat) && launch_flat(d, s, dag, &flat) ? RP_OK : rp__loop_launch_one(d, s, dag, space);
}

/* ---- launches that are made ready ----------------------------------------------------------------------------------- */

enum { READY_WORDS = 128 };
struct rp__ready {
    rp__dag *dag;       /* counted */
    rp__kernel *kernel; /* counted */
    const rp__tiles *tiles;
    bool flat;     /* `line` says all, else `words` */
    rp__line line; /* but for the addresses */
    int64_t items, grain;
    int64_t counted;       /* elements that rp__jit_count is told of; 0: nothing is to be compiled */
    uint32_t n_words, tag; /* words; number of the error tag's, 0: none */
    uint32_t n_addresses;  /* accesses that are memory */
    uint8_t address[RP__DAG_MAX_ACCESSES];
    uint64_t *words;
};

static void ready_free(rp__ready *r) {
    if (!r) return;
    rp__kernel_release(r->kernel);
    rp__dag_release(r->dag);
    rp__free(r);
}
/* With room for what follows the record, from the next multiple of 64 on. */
static rp__ready *ready_alloc(rp__dag *dag, rp__kernel *k, size_t bytes) {
    const size_t head = (sizeof(rp__ready) + 63) / 64 * 64;
    rp__ready *r = rp__alloc_aligned(64, head + bytes);
    if (!r) return NULL;
    memset(r, 0, head);
    r->dag = rp__dag_retain(dag);
    r->kernel = rp__kernel_retain(k);
    r->tiles = program_of(k)->tiles;
    r->words = (uint64_t *)(void *)((char *)r + head);
    return r;
}
static rp__ready *ready_new(rp__device *d, rp__dag *dag, const rp__space *space) {
    rp__kernel *k = rp__cpu_kernel_made(dag);
    if (dag->rest || dag->n_draws || !k || program_of(k)->tiles != rp__tiles_current()) return NULL;
    const rp__cpu_loop *loop = k->payload;
    rp__flat flat;
    if (flat_of(dag, space, &flat) && program_of(k)->plan == RP__PLAN_ELEMENTS &&
        rp__line_flat_fits(loop, dag, &flat)) {
        rp__ready *r = ready_alloc(dag, k, 64 * (size_t)program_of(k)->n_blocks);
        if (!r) return NULL;
        r->flat = true;
        r->line = (rp__line){.blocks = (const char *)r->words, .rows = 1, .n = flat.n, .still = flat.still};
        rp__line_flat_blocks(loop, dag, &flat, (char *)r->words);
        return r;
    }
    rp__points points;
    rp__space_layout layout;
    const rp__space *walked = in_order(dag, k, space, &points);
    rp__space_layout_of(dag, rp__space_dims(walked), 1, &layout);
    rp__launch_buffer *buffer = layout.end <= READY_WORDS ? rp__launch_buffer_get() : NULL;
    rp__launch l = {.kernel = NULL};
    if (!buffer || bind(d, dag, space, buffer, &l) != RP_OK || !l.kernel) return NULL;
    rp__ready *r = ready_alloc(dag, k, l.n_words * sizeof *l.words);
    if (!r) return NULL;
    memcpy(r->words, l.words, l.n_words * sizeof *l.words);
    r->items = l.items;
    r->grain = l.grain;
    r->n_words = l.n_words;
    r->tag = dag->checks ? layout.error + 1 : 0;
    for (unsigned a = 0; a < dag->n_accesses; a++) {
        if (dag->accesses[a].kind != RP__ACCESS_IOTA) r->address[r->n_addresses++] = (uint8_t)a;
    }
    if (!served_by_line(k, dag, walked, (rp__walk)(l.words[0] & 0xff))) {
        r->counted = 1;
        for (unsigned i = 0; i < rp__space_dims(walked); i++) r->counted *= walked->extent[i];
    }
    return r;
}
static __attribute__((noinline)) rp_status run_words(rp__ready *r, rp_stream *s, char *const *base, const char *op,
                                                     const char *site) {
    for (uint32_t i = 0; i < r->n_addresses; i++)
        r->words[1 + r->address[i]] = (uint64_t)(uintptr_t)base[r->address[i]];
    if (r->tag) r->words[r->tag] = rp__error_tag(op, site);
    if (r->counted) rp__jit_count(r->dag, r->kernel, r->counted);
    return rp__launch_on(s, &(rp__launch){.kernel = r->kernel,
                                          .words = r->words,
                                          .n_words = r->n_words,
                                          .items = r->items,
                                          .grain = r->grain,
                                          .op = op,
                                          .site = site});
}
static bool ready_run(rp__ready *r, rp_stream *s, char *const *base, const char *op, const char *site,
                      rp_status *status) {
    if (RP__UNLIKELY(rp__cpu_kernel_made(r->dag) != r->kernel || r->tiles != rp__tiles_current())) return false;
    if (RP__LIKELY(r->flat)) {
        const rp__cpu_loop *loop = r->kernel->payload;
        r->line.base = base;
        atomic_load_explicit(&loop->line[RP__PLAN_ELEMENTS], memory_order_acquire)(&r->line);
        *status = RP_OK;
    } else {
        *status = run_words(r, s, base, op, site);
    }
    return true;
}

/* ---- schedules ------------------------------------------------------------------------------------------------------ */

static size_t schedules(rp__device *d, rp__dag *dag, const rp__space *space, bool free, rp__schedule *out,
                        size_t room) {
    enum { LARGE = 4 << 20 }; /* bytes: below, stores stay in the caches */
    (void)d, (void)free;      /* the order of a reduction is no schedule's */
    rp__kernel *k = dag->rest || !dag->rows || space->lanes ? NULL : kernel_of(dag);
    if (!k) {
        (void)rp_error_take();
        return 0;
    }
    const rp__program *p = program_of(k);
    rp__points points;
    space = in_order(dag, k, space, &points);
    int64_t rows = 1, row_len = 1, bytes = 0;
    const unsigned n_outer = rp__space_outer(dag, space), dims = rp__space_dims(space);
    for (unsigned i = 0; i < dims; i++) *(i < n_outer ? &rows : &row_len) *= space->extent[i];
    for (unsigned a = 0; a < dag->n_accesses; a++) bytes += space->accesses[a].end - space->accesses[a].begin;
    rp__schedule all[8];
    size_t n = 0;
    const bool elements = p->plan == RP__PLAN_ELEMENTS;
    const rp__walk own = elements ? RP__WALK_ELEMENTS : walk_of(dag, space, rows, row_len, k);
    if (elements && !p->serial && block_dim(dag, space, rows * row_len) >= 0) all[n++] = (rp__schedule){.flat = 1};
    if (!elements && rows > 1)
        all[n++] = (rp__schedule){.path = own == RP__WALK_ALONG ? 1 + RP__WALK_ACROSS : 1 + RP__WALK_ALONG};
    if (bytes >= LARGE && own != RP__WALK_ACROSS) {
        all[n++] = (rp__schedule){.past = 1};
        all[n++] = (rp__schedule){.past = 2};
    }
    if (!p->serial && bytes > 1 << 16) {
        all[n++] = (rp__schedule){.grain = 6};
        all[n++] = (rp__schedule){.grain = 10};
        all[n++] = (rp__schedule){.grain = 40}; /* one thread */
    }
    if (n > room) n = room;
    memcpy(out, all, n * sizeof *all);
    return n;
}

static void schedule_text(rp__device *d, rp__dag *dag, const rp__space *space, rp__text *out) {
    static const char *const names[] = {"elements", "rows along", "rows across", "long rows", "lanes", "blocks"};
    rp__launch l = {.kernel = NULL};
    rp__launch_buffer *buffer = dag->rest || !dag->rows ? NULL : rp__launch_buffer_get();
    if (!buffer || bind(d, dag, space, buffer, &l) != RP_OK || !l.kernel) {
        (void)rp_error_take();
        return;
    }
    rp__text_puts(out, names[l.words[0] & 0xff]);
    if (l.items > l.grain) rp__text_add(out, ", %lld slices", (long long)((l.items + l.grain - 1) / l.grain));
    const uint64_t past = l.words[0] >> RP__CPU_PAST & 3u;
    if (past) rp__text_puts(out, past == 1 ? ", stores into the caches" : ", stores past the caches");
}

/* The processor's name, its instruction set and the threads. */
static void machine(rp__device *d, rp__text *out) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    rp__text_puts(out, d->label);
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        rp__text_puts(out, line);
        break;
    }
    if (f) (void)fclose(f);
}

/* Functions of ours take as long as approximate ones would; an fma without an instruction takes longer. */
static unsigned freedoms(void) {
    unsigned f = 1u << RP__FREE_QUOTIENT | 1u << RP__FREE_WIDE;
#if defined(__x86_64__) || defined(__i386__)
    if (rp__tiles_current() != &rp__tiles_baseline) f |= 1u << RP__FREE_FMA;
#elif defined(__FP_FAST_FMAF) || defined(__aarch64__)
    f |= 1u << RP__FREE_FMA;
#endif
    return f;
}

const rp__loop_backend rp__cpu_loops = {.bind = bind,
                                        .freedoms = freedoms,
                                        .schedules = schedules,
                                        .schedule_text = schedule_text,
                                        .machine = machine,
                                        .source = source,
                                        .destroy = destroy,
                                        .launch = launch,
                                        .launch_flat = launch_flat,
                                        .ready_new = ready_new,
                                        .ready_run = ready_run,
                                        .ready_free = ready_free,
                                        .bind_many = bind_many,
                                        .hot = hot,
                                        .fault = fault};
