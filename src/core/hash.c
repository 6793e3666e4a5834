/* 128-bit hashing over XXH3, and the map from hashes to pointers. The only file that includes xxhash.h. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/hash.h"

#include <string.h>

#include "core/alloc.h"

rp__hash rp__hash_bytes(const void *data, size_t bytes, rp__hash seed) {
    /* An empty seed is the plain XXH3 of the bytes. */
    uint64_t seed64 = seed.lo | seed.hi ? rp__hash_mix(seed.lo, seed.hi) : 0;
    XXH128_hash_t h = XXH3_128bits_withSeed(bytes ? data : "", bytes, seed64);
    return (rp__hash){h.low64, h.high64};
}

void rp__hash_text(rp__hash h, char out[33]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        out[i] = digits[h.hi >> (60 - 4 * i) & 15];
        out[16 + i] = digits[h.lo >> (60 - 4 * i) & 15];
    }
    out[32] = 0;
}

uint64_t rp__hash_mix(uint64_t a, uint64_t b) {
    /* The finaliser of splitmix64 (Steele, Lea, Flood 2014) over both words. */
    uint64_t x = a + UINT64_C(0x9e3779b97f4a7c15) * (b + 1);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

struct rp__map_entry {
    rp__hash key;
    void *value;
    bool used;
};

static size_t home(const rp__map *m, rp__hash key) { return (size_t)rp__hash_mix(key.lo, key.hi) & (m->capacity - 1); }

/* Index of key, or of the free entry where it belongs. Linear probing; the table is never full. */
static size_t probe(const rp__map *m, rp__hash key) {
    size_t i = home(m, key);
    while (m->entries[i].used && !rp__hash_equal(m->entries[i].key, key)) i = (i + 1) & (m->capacity - 1);
    return i;
}

void *rp__map_get(const rp__map *m, rp__hash key) {
    if (!m->count) return NULL;
    const struct rp__map_entry *e = &m->entries[probe(m, key)];
    return e->used ? e->value : NULL;
}

bool rp__map_put(rp__map *m, rp__hash key, void *value) {
    if ((m->count + 1) * 4 > m->capacity * 3) {
        rp__map grown = {.capacity = m->capacity ? m->capacity * 2 : 16, .count = m->count};
        grown.entries = rp__calloc(grown.capacity, sizeof *grown.entries);
        if (!grown.entries) {
            if (m->count + 1 >= m->capacity) /* one free entry must remain to end every probe */
                return false;
        } else {
            for (size_t i = 0; i < m->capacity; i++) {
                if (m->entries[i].used) grown.entries[probe(&grown, m->entries[i].key)] = m->entries[i];
            }
            rp__free(m->entries);
            *m = grown;
        }
    }
    struct rp__map_entry *e = &m->entries[probe(m, key)];
    m->count += !e->used;
    *e = (struct rp__map_entry){key, value, true};
    return true;
}

void *rp__map_remove(rp__map *m, rp__hash key) {
    if (!m->count) return NULL;
    size_t mask = m->capacity - 1, hole = probe(m, key);
    if (!m->entries[hole].used) return NULL;
    void *value = m->entries[hole].value;
    /* Entries behind the hole move up unless that would put them before their home. */
    for (size_t i = (hole + 1) & mask; m->entries[i].used; i = (i + 1) & mask) {
        if (((i - home(m, m->entries[i].key)) & mask) >= ((i - hole) & mask)) {
            m->entries[hole] = m->entries[i];
            hole = i;
        }
    }
    m->entries[hole] = (struct rp__map_entry){0};
    m->count--;
    return value;
}

void rp__map_free(rp__map *m) {
    rp__free(m->entries);
    *m = (rp__map){0};
}

bool rp__map_next(const rp__map *m, size_t *iterator, rp__hash *key, void **value) {
    for (; *iterator < m->capacity; (*iterator)++) {
        const struct rp__map_entry *e = &m->entries[*iterator];
        if (!e->used) continue;
        if (key) *key = e->key;
        if (value) *value = e->value;
        (*iterator)++;
        return true;
    }
    return false;
}
