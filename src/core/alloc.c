/* Host heap: counts live blocks and lets a test make the n-th allocation fail. Owns two counters and nothing else; sets no
   sticky error, because only the caller knows what the memory was for. */
#include "core/alloc.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL = 1024 };

atomic_bool rp__alloc_armed;
static _Atomic uint64_t live, counted;
static _Atomic uint64_t fail_number; /* 0: off; else the count at which one allocation fails */

uint64_t rp__alloc_fail_at(uint64_t n) {
    uint64_t now = atomic_load(&counted);
    atomic_store(&fail_number, n ? now + n : 0);
    atomic_store(&rp__alloc_armed, n != 0);
    return now;
}

uint64_t rp__alloc_live(void) { return atomic_load(&live); }

bool rp__alloc_inject(void) {
    uint64_t mine = atomic_fetch_add_explicit(&counted, 1, memory_order_relaxed) + 1;
    uint64_t at = atomic_load_explicit(&fail_number, memory_order_relaxed);
    if (at == 0 || mine != at) return false;
    atomic_store(&fail_number, 0);
    atomic_store(&rp__alloc_armed, false);
    return true;
}

void rp__alloc_counted(int blocks) {
    atomic_fetch_add_explicit(&live, (uint64_t)(int64_t)blocks, memory_order_relaxed);
}

static void *counted_block(void *p) {
    if (p) atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return p;
}

void *rp__alloc(size_t bytes) { return rp__alloc_inject() ? NULL : counted_block(malloc(bytes ? bytes : 1)); }

void *rp__calloc(size_t n, size_t bytes) {
    size_t total;
    if (__builtin_mul_overflow(n, bytes, &total) || rp__alloc_inject()) return NULL;
    if (total > SMALL) return counted_block(calloc(1, total));
    void *p = malloc(total ? total : 1); /* glibc's calloc goes past the thread's cache of small blocks */
    return p ? counted_block(memset(p, 0, total)) : NULL;
}

void *rp__realloc(void *p, size_t bytes) {
    if (!p) return rp__alloc(bytes);
    return rp__alloc_inject() ? NULL : realloc(p, bytes ? bytes : 1);
}

void *rp__alloc_aligned(size_t alignment, size_t bytes) {
    void *p = NULL;
    if (rp__alloc_inject() ||
        posix_memalign(&p, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes ? bytes : 1))
        return NULL;
    return counted_block(p);
}

void rp__free(void *p) {
    if (!p) return;
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    free(p);
}

char *rp__strdup(const char *s) {
    size_t n = strlen(s) + 1;
    char *copy = rp__alloc(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

bool rp__grow(void *array_address, size_t *capacity, size_t needed, size_t element_bytes) {
    if (needed <= *capacity) return true;
    size_t wanted = *capacity ? *capacity : 8, total;
    while (wanted < needed) {
        if (__builtin_mul_overflow(wanted, (size_t)2, &wanted)) return false;
    }
    if (__builtin_mul_overflow(wanted, element_bytes, &total)) return false;
    void *old, *grown;
    memcpy(&old, array_address, sizeof old);
    grown = rp__realloc(old, total);
    if (!grown) return false;
    memcpy(array_address, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}
