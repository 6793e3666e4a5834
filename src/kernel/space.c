/* Spaces: collapsing dims, the canonical parameter words and slots of a launch, and the launch calls. Device-independent; both
   backends fill words and slots through rp__space_words, so that recorders, planners and re-pointing see one layout. */
#include <string.h>

#include "core/alloc.h"
#include "core/thread.h"
#include "device/device.h"
#include "device/error_record.h"
#include "device/generator.h"
#include "kernel/loop.h"

/* ---- collapsing ----------------------------------------------------------------------------------------------------- */

/* axis: that of each dim. */
static void drop_dim(rp__space *s, rp__space_access *accesses, unsigned n_windows, uint8_t *axis, unsigned d,
                     unsigned n) {
    memmove(&s->extent[d], &s->extent[d + 1], (n - d - 1) * sizeof s->extent[0]);
    for (unsigned a = 0; a < s->n_accesses; a++) {
        memmove(&accesses[a].stride[d], &accesses[a].stride[d + 1], (n - d - 1) * sizeof accesses[a].stride[0]);
    }
    for (unsigned k = 0; k < n_windows; k++) {
        int64_t *factor = s->windows[k].factor;
        memmove(&factor[d], &factor[d + 1], (n - d - 1) * sizeof *factor);
    }
    s->dims[axis[d]]--;
    memmove(&axis[d], &axis[d + 1], n - d - 1);
}
/* Should dim x come inside dim y > x of its axis? The first access that tells them apart decides, written ones first asked. */
static bool swap_wanted(const rp__space *s, const rp__space_access *accesses, unsigned x, unsigned y) {
    for (unsigned a = s->n_accesses; a-- > 0;) {
        int64_t i = accesses[a].stride[x], j = accesses[a].stride[y];
        i = i < 0 ? -i : i;
        j = j < 0 ? -j : j;
        if (i == j || i == 0 || j == 0) continue;
        return i < j;
    }
    return false;
}
static void swap_dims(rp__space *s, rp__space_access *accesses, unsigned n_windows, unsigned x, unsigned y) {
    int64_t t = s->extent[x];
    s->extent[x] = s->extent[y];
    s->extent[y] = t;
    for (unsigned a = 0; a < s->n_accesses; a++) {
        t = accesses[a].stride[x];
        accesses[a].stride[x] = accesses[a].stride[y];
        accesses[a].stride[y] = t;
    }
    for (unsigned k = 0; k < n_windows; k++) {
        t = s->windows[k].factor[x];
        s->windows[k].factor[x] = s->windows[k].factor[y];
        s->windows[k].factor[y] = t;
    }
}
int64_t rp__space_step(const rp__dag *dag, const rp__space *s, const rp__space_access *accesses, unsigned access,
                       unsigned d) {
    int64_t step = accesses[access].stride[d];
    unsigned k = 0;
    for (unsigned a = 0; dag->accesses[access].windows && a < access; a++) k += dag->accesses[a].windows;
    for (unsigned i = 0; i < dag->accesses[access].windows; i++, k++) {
        if (s->windows[k].divisor == 1) step += s->windows[k].factor[d] * s->windows[k].stride;
    }
    return step;
}
/* Of a space without elements any number may be beyond 64 bits; nothing is walked there. */
static bool follows(int64_t outer, int64_t inner, int64_t extent) {
    return (uint64_t)outer == (uint64_t)inner * (uint64_t)extent;
}
void rp__space_collapse(const rp__dag *dag, rp__space *s, rp__space_access *accesses) {
    uint8_t axis[RP__SPACE_MAX_DIMS + 1];
    unsigned n = 0;
    for (unsigned x = 0; x < RP__DAG_MAX_AXES; x++) {
        const unsigned own = x < dag->n_axes || !dag->n_axes ? x : dag->n_axes - 1u, count = s->dims[x];
        if (own != x) {
            s->dims[x] = 0;
            s->dims[own] = (uint8_t)(s->dims[own] + count);
        }
        for (unsigned k = 0; k < count && n < RP__SPACE_MAX_DIMS; k++) axis[n++] = (uint8_t)own;
    }
    for (unsigned d = n; d-- > 0;) {
        if (s->extent[d] == 1) drop_dim(s, accesses, dag->n_windows, axis, d, n--);
    }
    bool iota = false; /* that counts elements in order; places of windows are numbers wherever the walk stands */
    for (unsigned a = 0; a < s->n_accesses; a++)
        iota = iota || (dag->accesses[a].kind == RP__ACCESS_IOTA && !dag->accesses[a].windows);
    const unsigned fixed = s->lanes ? UINT8_MAX : dag->ordered | dag->inner;
    for (unsigned i = 1; !iota && i < n; i++) {
        if (fixed >> axis[i] & 1u) continue;
        for (unsigned j = i; j > 0 && axis[j - 1] == axis[i] && swap_wanted(s, accesses, j - 1, j); j--)
            swap_dims(s, accesses, dag->n_windows, j - 1, j);
    }
    for (unsigned d = n; d-- > 1;) {
        if (axis[d] != axis[d - 1]) continue; /* dims of two axes never merge */
        bool merge = true;
        for (unsigned a = 0; a < s->n_accesses && merge; a++) {
            merge = follows(accesses[a].stride[d - 1], accesses[a].stride[d], s->extent[d]);
        }
        for (unsigned k = 0; k < dag->n_windows && merge; k++) {
            const int64_t *factor = s->windows[k].factor;
            merge = follows(factor[d - 1], factor[d], s->extent[d]);
        }
        int64_t extent;
        if (!merge || __builtin_mul_overflow(s->extent[d - 1], s->extent[d], &extent)) continue;
        for (unsigned a = 0; a < s->n_accesses; a++) accesses[a].stride[d - 1] = accesses[a].stride[d];
        for (unsigned k = 0; k < dag->n_windows; k++) s->windows[k].factor[d - 1] = s->windows[k].factor[d];
        s->extent[d - 1] = extent;
        drop_dim(s, accesses, dag->n_windows, axis, d, n--);
    }
}

/* ---- words and slots ------------------------------------------------------------------------------------------------ */

uint64_t rp__scalar_word(rp_scalar value, rp_dtype compute) {
    uint64_t word = 0;
    rp__scalar_store(value, compute, &word); /* the lowest bytes */
    return compute == RP_I32 ? (uint64_t)(int64_t)(int32_t)word : word;
}
void rp__space_layout_of(const rp__dag *dag, unsigned dims, uint32_t first, rp__space_layout *out) {
    out->address = first;
    out->extent = out->address + dag->n_accesses;
    out->stride = out->extent + dims;
    out->window = out->stride + dims * dag->n_accesses;
    out->scalar = out->window + (4 + dims) * dag->n_windows;
    out->draw = out->scalar + dag->n_scalars;
    out->error = out->draw + 3u * dag->n_draws;
    out->end = out->error + (dag->checks ? 2 : 0);
}
static uint32_t access_bits(unsigned kind) {
    return kind == RP__ACCESS_READ ? RP__READ : kind == RP__ACCESS_WRITE ? RP__WRITE : RP__READ | RP__WRITE;
}
rp_status rp__space_words(rp__device *d, const rp__dag *dag, const rp__space *space, uint32_t first,
                          rp__launch_buffer *buffer, rp__launch *out) {
    const unsigned dims = rp__space_dims(space);
    rp__space_layout at;
    rp__space_layout_of(dag, dims, first, &at);
    if (RP__UNLIKELY(dims > RP__SPACE_MAX_DIMS || space->n_accesses != dag->n_accesses ||
                     space->n_scalars < dag->n_scalars || (dag->n_windows && !space->windows) ||
                     (dag->n_draws && (!space->draw || space->n_draws < dag->n_draws)) || at.end > RP__MAX_WORDS ||
                     dag->n_accesses + dag->n_draws > RP__MAX_SLOTS)) {
        return rp__fail(RP_ERROR_INTERNAL,
                        "loop kernel: the space (%u dims, %u accesses, %u scalars, %u draws) does not fit "
                        "the DAG (%u accesses, %u scalars, %u draws)",
                        dims, space->n_accesses, space->n_scalars, space->n_draws, dag->n_accesses, dag->n_scalars,
                        dag->n_draws);
    }
    uint64_t *words = buffer->words;
    uint32_t n_slots = 0;
    for (unsigned i = 0; i < dims; i++) words[at.extent + i] = (uint64_t)space->extent[i];
    uint64_t *stride = words + at.stride;
    for (unsigned a = 0; a < dag->n_accesses; a++) {
        const rp__space_access *x = &space->accesses[a];
        for (unsigned i = 0; i < dims; i++) *stride++ = (uint64_t)x->stride[i];
        if (dag->accesses[a].kind == RP__ACCESS_IOTA) {
            words[at.address + a] = (uint64_t)x->iota_base;
            continue;
        }
        words[at.address + a] = (uint64_t)(uintptr_t)x->base;
        buffer->slots[n_slots++] = (rp__slot){.word = at.address + a,
                                              .access = access_bits(dag->accesses[a].kind),
                                              .storage = x->storage,
                                              .buffer = -1,
                                              .begin = x->begin,
                                              .end = x->end};
    }
    for (unsigned k = 0; k < dag->n_windows; k++) {
        const rp__space_window *w = &space->windows[k];
        uint64_t *to = words + at.window + k * (4 + dims);
        to[0] = (uint64_t)w->size;
        to[1] = (uint64_t)w->stride;
        to[2] = (uint64_t)w->pad;
        to[3] = (uint64_t)w->divisor;
        for (unsigned i = 0; i < dims; i++) to[4 + i] = (uint64_t)w->factor[i];
    }
    for (unsigned i = 0; i < dag->n_scalars; i++) {
        words[at.scalar + i] = rp__scalar_word(space->scalars[i], (rp_dtype)dag->scalar_dtypes[i]);
    }
    for (unsigned i = 0; i < dag->n_draws; i++) {
        words[at.draw + 3 * i] = (uint64_t)(uintptr_t)space->draw[i].state;
        words[at.draw + 3 * i + 1] = space->draw[i].seed;
        words[at.draw + 3 * i + 2] = space->draw[i].inner;
    }
    if (dag->checks) {
        words[at.error] = (uint64_t)(uintptr_t)(d ? d->errors : NULL);
        words[at.error + 1] = rp__error_tag(space->op, space->site);
    }
    out->words = words;
    out->n_words = at.end;
    out->slots = buffer->slots;
    out->n_slots = n_slots;
    out->draw = at.draw;
    out->n_draws = dag->n_draws;
    out->op = space->op;
    out->site = space->site;
    return RP_OK;
}

/* ---- the thread's buffer -------------------------------------------------------------------------------------------- */

static _Thread_local rp__launch_buffer *thread_buffer;
static void buffer_free(void *p) {
    thread_buffer = NULL;
    rp__free(p);
}

rp__launch_buffer *rp__launch_buffer_get(void) {
    if (RP__LIKELY(thread_buffer != NULL)) return thread_buffer;
    static rp__thread_end buffers = {.end = buffer_free};
    rp__launch_buffer *b = rp__alloc(sizeof *b);
    if (!b || !rp__thread_keep(&buffers, b)) {
        rp__free(b);
        rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: launch parameters");
        return NULL;
    }
    return thread_buffer = b;
}

/* ---- launching ------------------------------------------------------------------------------------------------------ */

/* ---- parts: launches that wait for others of the same DAG */

enum { PART_ACCESSES = 4 };
typedef struct rp__loop_part {
    rp__dag *dag;
    rp__space space;
    rp__space_access accesses[PART_ACCESSES];
} rp__loop_part;
static RP__TLS_FAST rp__loop_parts *gathering;

static bool is_part(const rp__loop_parts *p, rp__device *d, rp_stream *s, const rp__dag *dag, const rp__space *space) {
    return p->device == d && p->stream == s && d->ops->loops->bind_parts && dag->n_accesses <= PART_ACCESSES &&
           !dag->ordered && !dag->rest && !dag->n_windows && !dag->n_scalars && !dag->n_draws && !dag->checks &&
           !space->lanes;
}

static rp_status gather(rp__loop_parts *p, rp__dag *dag, const rp__space *space) {
    if (!RP__GROW(&p->part, &p->capacity, p->n + 1)) return RP__OOM("launches to gather");
    rp__loop_part *part = &p->part[p->n++];
    part->dag = rp__dag_retain(dag);
    part->space = *space;
    memcpy(part->accesses, space->accesses, dag->n_accesses * sizeof *part->accesses);
    return RP_OK;
}

static rp_status launch_parts(const rp__loop_parts *p, rp__loop_part *part, size_t n) {
    const rp__space *spaces[64];
    if (n > sizeof spaces / sizeof *spaces) {
        RP_TRY(launch_parts(p, part, n / 2));
        return launch_parts(p, part + n / 2, n - n / 2);
    }
    for (size_t k = 0; k < n; k++) {
        part[k].space.accesses = part[k].accesses;
        spaces[k] = &part[k].space;
    }
    if (n == 1) return rp__loop_launch(p->device, p->stream, part->dag, spaces[0]);
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    if (!buffer) return RP_ERROR_OUT_OF_MEMORY;
    rp__launch launch;
    rp_status status = p->device->ops->loops->bind_parts(p->device, part->dag, spaces, n, buffer, &launch);
    if (status == RP_ERROR_UNAVAILABLE) {
        RP_TRY(launch_parts(p, part, n / 2));
        return launch_parts(p, part + n / 2, n - n / 2);
    }
    if (RP__UNLIKELY(rp__kernel_log_set)) rp__kernel_log_tell(p->device, part->dag, spaces[0]);
    return status == RP_OK && launch.kernel ? rp__launch_on(p->stream, &launch) : status;
}

void rp__loop_parts_begin(rp__loop_parts *p, rp__device *d, rp_stream *s) {
    *p = (rp__loop_parts){.device = d, .stream = s};
    gathering = p;
}

rp_status rp__loop_parts_end(rp__loop_parts *p, rp_status status) {
    gathering = NULL;
    for (size_t k = 0, end; k < p->n && status == RP_OK; k = end) {
        for (end = k + 1; end < p->n && p->part[end].dag == p->part[k].dag;) end++;
        status = launch_parts(p, p->part + k, end - k);
    }
    for (size_t k = 0; k < p->n; k++) rp__dag_release(p->part[k].dag);
    rp__free(p->part);
    return status;
}

rp_status rp__loop_launch(rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *space) {
    if (RP__UNLIKELY(gathering != NULL) && is_part(gathering, d, s, dag, space)) return gather(gathering, dag, space);
    if (RP__UNLIKELY(rp__kernel_log_set)) rp__kernel_log_tell(d, dag, space);
    if (d->ops->loops->launch) return d->ops->loops->launch(d, s, dag, space);
    return rp__loop_launch_one(d, s, dag, space);
}
rp_status rp__loop_launch_one(rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *space) {
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    if (!buffer) return RP_ERROR_OUT_OF_MEMORY;
    rp__launch launch;
    memset(&launch, 0, sizeof launch);
    RP_TRY(d->ops->loops->bind(d, dag, space, buffer, &launch));
    return launch.kernel ? rp__launch_on(s, &launch) : RP_OK;
}
rp_status rp__loop_bind_many(rp__device *d, rp__dag *dag, const rp__space *shared, const rp__space_access *accesses,
                             const int64_t *extents, size_t n_groups, rp__launch_buffer *buffer, rp__launch *out) {
    if (!d->ops->loops->bind_many) return RP_ERROR_UNAVAILABLE;
    return d->ops->loops->bind_many(d, dag, shared, accesses, extents, n_groups, buffer, out);
}
rp_status rp__loop_launch_many(rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *shared,
                               const rp__space_access *accesses, const int64_t *extents, size_t n_groups) {
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    if (!buffer) return RP_ERROR_OUT_OF_MEMORY;
    if (!n_groups) return RP_OK;
    if (n_groups > 1) {
        if (RP__UNLIKELY(rp__kernel_log_set)) {
            rp__space first = *shared;
            memset(first.dims, 0, sizeof first.dims);
            first.dims[0] = 1;
            first.extent[0] = extents[0];
            first.accesses = accesses;
            first.n_accesses = dag->n_accesses;
            rp__kernel_log_tell(d, dag, &first);
        }
        rp__launch launch;
        memset(&launch, 0, sizeof launch);
        rp_status status = rp__loop_bind_many(d, dag, shared, accesses, extents, n_groups, buffer, &launch);
        if (status == RP_OK) return launch.kernel ? rp__launch_on(s, &launch) : RP_OK;
        if (status != RP_ERROR_UNAVAILABLE) return status;
        const size_t half = n_groups / 2;
        RP_TRY(rp__loop_launch_many(d, s, dag, shared, accesses, extents, half));
        return rp__loop_launch_many(d, s, dag, shared, accesses + half * dag->n_accesses, extents + half,
                                    n_groups - half);
    }
    rp__space one = *shared;
    memset(one.dims, 0, sizeof one.dims);
    one.dims[0] = 1;
    one.extent[0] = extents[0];
    one.accesses = accesses;
    one.n_accesses = dag->n_accesses;
    return rp__loop_launch(d, s, dag, &one);
}
