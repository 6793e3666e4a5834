/* Memory plan: offsets of buffers in one arena, by lifetime.
   Offline best fit: buffers from large to small, each into the smallest gap that is free of buffers alive at the same time and
   large enough: in one of the spaces that cost nothing, else in the arena, else behind its buffers. O(n^2) over buffers that
   overlap in time, for each space. */
#include <stdlib.h>
#include <string.h>

#include "compile/program.h"
#include "core/alloc.h"

static int64_t align_up(int64_t n) { return (n + RP__PLAN_ALIGNMENT - 1) / RP__PLAN_ALIGNMENT * RP__PLAN_ALIGNMENT; }

typedef struct by_size {
    int64_t bytes;
    size_t index;
} by_size;

static int larger_first(const void *x, const void *y) {
    const by_size *a = x, *b = y;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int lower_first(const void *x, const void *y) {
    const rp__plan_buffer *a = *(rp__plan_buffer *const *)x, *b = *(rp__plan_buffer *const *)y;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return 0;
}

/* Of the gaps between alive[], sorted, and `limit`, the smallest that holds the bytes: where it begins, -1 without one. */
static int64_t smallest_gap(rp__plan_buffer *const *alive, size_t n, int64_t bytes, int64_t limit, int64_t *gap) {
    int64_t end = 0, best = -1;
    for (size_t j = 0; j <= n; j++) {
        int64_t here = (j < n ? alive[j]->offset : limit) - end;
        if (here >= bytes && here < *gap) {
            best = end;
            *gap = here;
        }
        int64_t behind = j < n ? alive[j]->offset + align_up(alive[j]->bytes) : 0;
        if (behind > end) end = behind;
    }
    return best;
}

/* Those of sorted[0..n) that lie in the space while b is alive, by offset. */
static size_t find_alive(rp__plan_buffer *buffers, const by_size *sorted, size_t n, const rp__plan_buffer *b,
                         uint32_t space, rp__plan_buffer **alive) {
    size_t n_alive = 0;
    for (size_t j = 0; j < n; j++) {
        rp__plan_buffer *other = &buffers[sorted[j].index];
        bool together = other->first <= b->last && b->first <= other->last;
        if (together && other->space == space && other->bytes > 0) alive[n_alive++] = other;
    }
    qsort(alive, n_alive, sizeof *alive, lower_first);
    return n_alive;
}

rp_status rp__plan(rp__plan_buffer *buffers, size_t n, const rp__plan_space *spaces, uint32_t n_spaces,
                   int64_t *arena_bytes) {
    *arena_bytes = 0;
    if (n == 0) return RP_OK;
    by_size *sorted = rp__alloc(n * sizeof *sorted);
    rp__plan_buffer **alive = rp__alloc(n * sizeof *alive);
    rp_status status = sorted && alive ? RP_OK : RP__OOM("memory plan");
    for (size_t k = 0; k < n && status == RP_OK; k++) sorted[k] = (by_size){buffers[k].bytes, k};
    if (status == RP_OK) qsort(sorted, n, sizeof *sorted, larger_first);
    for (size_t k = 0; k < n && status == RP_OK; k++) {
        rp__plan_buffer *b = &buffers[sorted[k].index];
        int64_t need = align_up(b->bytes), gap = INT64_MAX;
        b->space = RP__PLAN_ARENA;
        for (uint32_t s = 0; s < n_spaces && b->bytes > 0; s++) {
            if (spaces[s].last >= b->first || spaces[s].bytes < b->bytes) continue;
            size_t n_alive = find_alive(buffers, sorted, k, b, s, alive);
            int64_t at = smallest_gap(alive, n_alive, b->bytes, spaces[s].bytes, &gap);
            if (at < 0) continue;
            b->space = s;
            b->offset = at;
        }
        if (b->space != RP__PLAN_ARENA) continue;
        size_t n_alive = find_alive(buffers, sorted, k, b, RP__PLAN_ARENA, alive);
        b->offset = smallest_gap(alive, n_alive, need, INT64_MAX / 2, &gap);
        if (b->offset < 0) status = rp__fail(RP_ERROR_OUT_OF_MEMORY, "the arena of a program is too large");
        if (status == RP_OK && b->offset + need > *arena_bytes) *arena_bytes = b->offset + need;
    }
    rp__free(sorted);
    rp__free(alive);
    return status;
}
