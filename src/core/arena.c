/* Arena: a chain of blocks, newest first; everything in it dies together. */
#include "core/arena.h"

#include <stdint.h>
#include <string.h>

#include "core/alloc.h"

enum { BLOCK_BYTES = 16 * 1024, ALIGN = 16 };

struct rp__arena_block {
    struct rp__arena_block *next;
    size_t capacity;
};
#define HEAD ((sizeof(struct rp__arena_block) + ALIGN - 1) / ALIGN * ALIGN)

void *rp__arena_alloc(rp__arena *a, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    size_t rounded = bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    if (!a->head || a->head->capacity - a->used < rounded) {
        size_t capacity = rounded > BLOCK_BYTES - HEAD ? rounded : BLOCK_BYTES - HEAD;
        struct rp__arena_block *block = rp__alloc_aligned(ALIGN, HEAD + capacity);
        if (!block) return NULL;
        block->capacity = capacity;
        block->next = a->head;
        a->head = block;
        a->used = 0;
    }
    char *p = (char *)a->head + HEAD + a->used;
    a->used += rounded;
    return memset(p, 0, rounded);
}

void *rp__arena_copy(rp__arena *a, const void *src, size_t bytes) {
    void *p = rp__arena_alloc(a, bytes);
    if (p && bytes) memcpy(p, src, bytes);
    return p;
}

char *rp__arena_strdup(rp__arena *a, const char *s) { return rp__arena_copy(a, s, strlen(s) + 1); }

void rp__arena_free(rp__arena *a) {
    for (struct rp__arena_block *block = a->head, *next; block; block = next) {
        next = block->next;
        rp__free(block);
    }
    *a = (rp__arena){0};
}
