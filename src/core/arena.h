/* Arena: memory of one lifetime, freed at once. Graph nodes, passes and builders live in one. */
#ifndef RP_CORE_ARENA_H
#define RP_CORE_ARENA_H

#include <stddef.h>

typedef struct rp__arena {
    struct rp__arena_block *head;
    size_t used; /* bytes in the head block */
} rp__arena;

void *rp__arena_alloc(rp__arena *a, size_t bytes); /* zeroed, 16-byte aligned; NULL when out of memory */
char *rp__arena_strdup(rp__arena *a, const char *s);
void *rp__arena_copy(rp__arena *a, const void *src, size_t bytes);
void rp__arena_free(rp__arena *a);                                          /* empties it; reusable */
static inline void *rp__arena_array(rp__arena *a, size_t n, size_t bytes) { /* NULL on overflow too */
    size_t total;
    return __builtin_mul_overflow(n, bytes, &total) ? NULL : rp__arena_alloc(a, total);
}
#define RP__NEW(arena, type, n) ((type *)rp__arena_array((arena), (n), sizeof(type)))

#endif
