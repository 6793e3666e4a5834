/* Hashing, one file over XXH3 (header only). Keys of kernels, traces and caches are 128-bit and outlive the process. */
#ifndef RP_CORE_HASH_H
#define RP_CORE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rp__hash {
    uint64_t lo, hi;
} rp__hash;

rp__hash rp__hash_bytes(const void *data, size_t bytes, rp__hash seed);
static inline rp__hash rp__hash_none(void) { return (rp__hash){0, 0}; }
static inline bool rp__hash_equal(rp__hash a, rp__hash b) { return a.lo == b.lo && a.hi == b.hi; }
void rp__hash_text(rp__hash h, char out[33]);  /* lower-case hex */
uint64_t rp__hash_mix(uint64_t a, uint64_t b); /* quick in-process mixing */

/* Open-addressing map from rp__hash to pointer. Not locked. */
typedef struct rp__map {
    struct rp__map_entry *entries;
    size_t capacity, count;
} rp__map;
void *rp__map_get(const rp__map *m, rp__hash key);
bool rp__map_put(rp__map *m, rp__hash key, void *value); /* false: out of memory; replaces */
void *rp__map_remove(rp__map *m, rp__hash key);
void rp__map_free(rp__map *m);
bool rp__map_next(const rp__map *m, size_t *iterator, rp__hash *key, void **value);

#endif
