/* Memory plan: offsets of buffers in one arena, by lifetime.
   Offline best fit: buffers from large to small, each into the smallest gap that is free of buffers alive at the same time and
   large enough: in one of the spaces that cost nothing, else in the arena, else behind its buffers. Of equal gaps the one in
   the first space, at the lowest offset.

   What is alive with a buffer comes from a tree over positions: near n log n for buffers that live shortly, and never more
   than the pairs that are alive together. Of spaces, those that hold something meanwhile are looked into; of the others only
   the smallest that is large enough counts, which a tree over their sizes finds. */
#include <stdlib.h>
#include <string.h>

#include "compile/program.h"
#include "core/alloc.h"

#define NONE UINT32_MAX

static int64_t align_up(int64_t n) { return (n + RP__PLAN_ALIGNMENT - 1) / RP__PLAN_ALIGNMENT * RP__PLAN_ALIGNMENT; }

typedef struct by_size {
    int64_t bytes;
    uint32_t index;
} by_size;

static int larger_first(const void *x, const void *y) {
    const by_size *a = x, *b = y;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int smaller_first(const void *x, const void *y) {
    const by_size *a = x, *b = y;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int by_place(const void *x, const void *y) {
    const rp__plan_buffer *a = *(rp__plan_buffer *const *)x, *b = *(rp__plan_buffer *const *)y;
    uint32_t in_a = a->space + 1, in_b = b->space + 1; /* the arena first */
    if (in_a != in_b) return in_a < in_b ? -1 : 1;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return 0;
}

typedef struct planner {
    rp__plan_buffer *buffers;
    const rp__plan_space *spaces;
    uint32_t n_spaces;
    /* Tree over positions, leaves at `leaves`: the last position of anything placed that begins below. */
    uint32_t leaves, *last; /* last + 1; 0: nothing */
    uint32_t *starting;     /* per position: a buffer that is placed and begins there */
    uint32_t *next;         /* per buffer: another one */
    /* Spaces from small to large; a tree over them, leaves at `ranks`: the first position behind which one below is free. */
    by_size *ranked;
    uint32_t ranks, *free_behind;
    rp__plan_buffer **alive;
    size_t n_alive, steps;
} planner;

static uint32_t power_of_two(uint32_t n) {
    uint32_t p = 1;
    while (p < n) p *= 2;
    return p;
}

static void place(planner *p, uint32_t index) {
    const rp__plan_buffer *b = &p->buffers[index];
    if (b->bytes <= 0) return;
    p->next[index] = p->starting[b->first];
    p->starting[b->first] = index;
    for (uint32_t k = p->leaves + b->first; k >= 1 && p->last[k] < b->last + 1; k /= 2, p->steps++)
        p->last[k] = b->last + 1;
}

/* alive[] gets what lives in [first, last], of the positions below tree node k: `width` from `begin` on. */
static void find_alive(planner *p, uint32_t k, uint32_t begin, uint32_t width, uint32_t first, uint32_t last) {
    p->steps++;
    if (begin > last || p->last[k] < first + 1) return;
    if (width > 1) {
        find_alive(p, 2 * k, begin, width / 2, first, last);
        find_alive(p, 2 * k + 1, begin + width / 2, width / 2, first, last);
        return;
    }
    for (uint32_t i = p->starting[begin]; i != NONE; i = p->next[i], p->steps++)
        if (p->buffers[i].last >= first) p->alive[p->n_alive++] = &p->buffers[i];
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

/* The first rank from `from` on whose space is free at `position`, of those below tree node k; NONE. */
static uint32_t find_free(planner *p, uint32_t k, uint32_t begin, uint32_t width, uint32_t from, uint32_t position) {
    p->steps++;
    if (begin + width <= from || p->free_behind[k] >= position) return NONE;
    if (width == 1) return begin;
    uint32_t found = find_free(p, 2 * k, begin, width / 2, from, position);
    return found != NONE ? found : find_free(p, 2 * k + 1, begin + width / 2, width / 2, from, position);
}

static bool holds_alive(const planner *p, size_t from, uint32_t space) { /* alive[] from `from` on is by space */
    size_t low = from, high = p->n_alive;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (p->alive[middle]->space < space)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->n_alive && p->alive[low]->space == space;
}

/* Of the spaces that hold nothing while b lives, the smallest that is large enough, the first of equal ones. */
static uint32_t smallest_empty(planner *p, size_t from, const rp__plan_buffer *b) {
    uint32_t low = 0, high = p->n_spaces;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (p->ranked[middle].bytes < b->bytes)
            low = middle + 1;
        else
            high = middle;
    }
    for (;; low++) {
        low = find_free(p, 1, 0, p->ranks, low, b->first);
        if (low == NONE || !holds_alive(p, from, p->ranked[low].index))
            return low == NONE ? NONE : p->ranked[low].index;
    }
}

/* Into a space, if one has room. */
static bool place_in_space(planner *p, size_t from, rp__plan_buffer *b) {
    int64_t gap = INT64_MAX;
    for (size_t k = from, end; k < p->n_alive; k = end) {
        uint32_t s = p->alive[k]->space;
        for (end = k + 1; end < p->n_alive && p->alive[end]->space == s;) end++;
        if (p->spaces[s].last >= b->first || p->spaces[s].bytes < b->bytes) continue;
        int64_t at = smallest_gap(p->alive + k, end - k, b->bytes, p->spaces[s].bytes, &gap);
        if (at < 0) continue;
        b->space = s;
        b->offset = at;
    }
    uint32_t empty = smallest_empty(p, from, b);
    if (empty == NONE) return b->space != RP__PLAN_ARENA;
    int64_t bytes = p->spaces[empty].bytes;
    if (bytes < gap || (bytes == gap && empty < b->space)) {
        b->space = empty;
        b->offset = 0;
    }
    return true;
}

static rp_status place_one(planner *p, uint32_t index, int64_t *arena_bytes) {
    rp__plan_buffer *b = &p->buffers[index];
    int64_t need = align_up(b->bytes), gap = INT64_MAX;
    b->space = RP__PLAN_ARENA;
    p->n_alive = 0;
    find_alive(p, 1, 0, p->leaves, b->first, b->last);
    qsort(p->alive, p->n_alive, sizeof *p->alive, by_place);
    size_t in_arena = 0;
    while (in_arena < p->n_alive && p->alive[in_arena]->space == RP__PLAN_ARENA) in_arena++;
    p->steps += p->n_alive;
    if (p->n_spaces == 0 || b->bytes <= 0 || !place_in_space(p, in_arena, b)) {
        b->offset = smallest_gap(p->alive, in_arena, need, INT64_MAX / 2, &gap);
        if (b->offset < 0) return rp__fail(RP_ERROR_OUT_OF_MEMORY, "the arena of a program is too large");
        if (b->offset + need > *arena_bytes) *arena_bytes = b->offset + need;
    }
    place(p, index);
    return RP_OK;
}

static void rank_spaces(planner *p) {
    for (uint32_t s = 0; s < p->n_spaces; s++) p->ranked[s] = (by_size){p->spaces[s].bytes, s};
    qsort(p->ranked, p->n_spaces, sizeof *p->ranked, smaller_first);
    for (uint32_t k = 0; k < p->ranks; k++)
        p->free_behind[p->ranks + k] = k < p->n_spaces ? p->spaces[p->ranked[k].index].last : UINT32_MAX;
    for (uint32_t k = p->ranks; k-- > 1;) {
        uint32_t a = p->free_behind[2 * k], b = p->free_behind[2 * k + 1];
        p->free_behind[k] = a < b ? a : b;
    }
}

rp_status rp__plan(rp__plan_buffer *buffers, size_t n, const rp__plan_space *spaces, uint32_t n_spaces,
                   int64_t *arena_bytes, size_t *steps) {
    *arena_bytes = 0;
    if (steps) *steps = 0;
    if (n == 0) return RP_OK;
    if (n >= NONE) return rp__fail(RP_ERROR_OUT_OF_MEMORY, "a program has too many buffers");
    uint32_t positions = 0;
    for (size_t k = 0; k < n; k++)
        if (buffers[k].last > positions) positions = buffers[k].last;
    planner p = {.buffers = buffers,
                 .spaces = spaces,
                 .n_spaces = n_spaces,
                 .leaves = power_of_two(positions + 1),
                 .ranks = power_of_two(n_spaces + 1)};
    by_size *sorted = rp__alloc(n * sizeof *sorted);
    p.last = rp__calloc((size_t)p.leaves * 2, sizeof *p.last);
    p.starting = rp__alloc((size_t)p.leaves * sizeof *p.starting);
    p.next = rp__alloc(n * sizeof *p.next);
    p.ranked = rp__alloc((n_spaces + 1u) * sizeof *p.ranked);
    p.free_behind = rp__alloc((size_t)p.ranks * 2 * sizeof *p.free_behind);
    p.alive = rp__alloc(n * sizeof *p.alive);
    bool ready = sorted && p.last && p.starting && p.next && p.ranked && p.free_behind && p.alive;
    rp_status status = ready ? RP_OK : RP__OOM("memory plan");
    if (ready) {
        memset(p.starting, 0xff, (size_t)p.leaves * sizeof *p.starting);
        rank_spaces(&p);
        for (size_t k = 0; k < n; k++) sorted[k] = (by_size){buffers[k].bytes, (uint32_t)k};
        qsort(sorted, n, sizeof *sorted, larger_first);
    }
    for (size_t k = 0; k < n && status == RP_OK; k++) status = place_one(&p, sorted[k].index, arena_bytes);
    if (steps) *steps = p.steps;
    rp__free(sorted);
    rp__free(p.last);
    rp__free(p.starting);
    rp__free(p.next);
    rp__free(p.ranked);
    rp__free(p.free_behind);
    rp__free(p.alive);
    return status;
}
