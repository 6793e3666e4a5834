/* Memory plan: offsets of buffers in one arena, by lifetime.
   Offline best fit: buffers from large to small, each into the smallest gap that is free of buffers alive at the same time and
   large enough, else behind them. O(n^2) over buffers that overlap in time. */
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

rp_status rp__plan(rp__plan_buffer *buffers, size_t n, int64_t *arena_bytes) {
    *arena_bytes = 0;
    if (n == 0) return RP_OK;
    by_size *sorted = rp__alloc(n * sizeof *sorted);
    rp__plan_buffer **alive = rp__alloc(n * sizeof *alive);
    rp_status status = sorted && alive ? RP_OK : RP__OOM("memory plan");
    for (size_t k = 0; k < n && status == RP_OK; k++) sorted[k] = (by_size){buffers[k].bytes, k};
    if (status == RP_OK) qsort(sorted, n, sizeof *sorted, larger_first);
    for (size_t k = 0; k < n && status == RP_OK; k++) {
        rp__plan_buffer *b = &buffers[sorted[k].index];
        size_t n_alive = 0;
        for (size_t j = 0; j < k; j++) {
            rp__plan_buffer *other = &buffers[sorted[j].index];
            if (other->first <= b->last && b->first <= other->last && other->bytes > 0) alive[n_alive++] = other;
        }
        qsort(alive, n_alive, sizeof *alive, lower_first);
        int64_t end = 0, best = -1, best_gap = INT64_MAX, need = align_up(b->bytes);
        for (size_t j = 0; j < n_alive; j++) {
            int64_t gap = alive[j]->offset - end;
            if (gap >= need && gap < best_gap) {
                best = end;
                best_gap = gap;
            }
            int64_t behind = alive[j]->offset + align_up(alive[j]->bytes);
            if (behind > end) end = behind;
        }
        b->offset = best >= 0 ? best : end;
        if (need > INT64_MAX / 2 - b->offset)
            status = rp__fail(RP_ERROR_OUT_OF_MEMORY, "the arena of a program is too large");
        if (status == RP_OK && b->offset + need > *arena_bytes) *arena_bytes = b->offset + need;
    }
    rp__free(sorted);
    rp__free(alive);
    return status;
}
