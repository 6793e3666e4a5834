/* The set of instances that a function keeps (instances.h). */
#include "compile/instances.h"

#include <stdlib.h>

#include "core/alloc.h"

rp__instances *rp__instances_new(size_t limit, uint64_t bytes) {
    rp__instances *s = rp__calloc(1, sizeof *s);
    if (!s) {
        (void)RP__OOM("compiled function");
        return NULL;
    }
    atomic_init(&s->refs, 1);
    (void)pthread_mutex_init(&s->lock, NULL);
    s->limit = limit ? limit : RP__INSTANCES;
    s->bytes_limit = bytes ? bytes : RP__INSTANCE_BYTES;
    return s;
}

rp__instances *rp__instances_retain(rp__instances *s) {
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void rp__instances_release(rp__instances *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    (void)pthread_mutex_destroy(&s->lock);
    rp__free(s->all);
    rp__free(s->arenas);
    rp__free(s);
}

void rp__instances_use(rp__instances *s, rp__instance *i) { i->used = i->owner->last = ++s->now; }

rp_status rp__instances_add(rp__instances *s, rp__instance *i) {
    if (!RP__GROW(&s->all, &s->capacity, s->n + 1) || !RP__GROW(&s->arenas, &s->arenas_capacity, s->n + 1))
        return RP__OOM("compiled function");
    i->at = s->n;
    s->all[s->n++] = i;
    rp__instances_use(s, i);
    return RP_OK;
}

void rp__instances_remove(rp__instances *s, rp__instance *i) {
    s->all[i->at] = s->all[--s->n];
    s->all[i->at]->at = i->at;
}

static int by_address(const void *x, const void *y) {
    const rp__storage *a = *(const rp__storage *const *)x, *b = *(const rp__storage *const *)y;
    return (a > b) - (a < b);
}

/* An arena that several share counts once. */
static bool too_large(const rp__instances *s) {
    uint64_t bytes = 0;
    size_t n = 0;
    for (size_t k = 0; k < s->n; k++) {
        if (!s->all[k]->program) continue;
        const rp__storage *arena;
        bytes += rp__executable_holds(s->all[k]->program, &arena);
        if (arena) s->arenas[n++] = arena;
    }
    if (n) qsort(s->arenas, n, sizeof *s->arenas, by_address);
    for (size_t k = 0; k < n; k++)
        if (k == 0 || s->arenas[k] != s->arenas[k - 1]) bytes += ((const rp__storage *)s->arenas[k])->bytes;
    return bytes > s->bytes_limit;
}

rp__instance *rp__instances_victim(rp__instances *s) {
    rp__instance *oldest = NULL;
    for (size_t k = 0; k < s->n; k++) {
        rp__instance *i = s->all[k];
        if (i->used != i->owner->last && (!oldest || i->used < oldest->used)) oldest = i;
    }
    return oldest && (s->n > s->limit || too_large(s)) ? oldest : NULL;
}
