/* Host heap of the library: every malloc of Reprise goes through here, so that statistics are complete and a test can make
   the n-th allocation fail. Nothing here sets the sticky error: the caller knows what it was allocating for. */
#ifndef RP_CORE_ALLOC_H
#define RP_CORE_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *rp__alloc(size_t bytes);            /* uninitialised; NULL when out of memory; bytes 0 is allowed */
void *rp__calloc(size_t n, size_t bytes); /* zeroed; NULL on overflow */
void *rp__realloc(void *p, size_t bytes); /* p survives a failure */
void *rp__alloc_aligned(size_t alignment, size_t bytes); /* freed by rp__free */
void rp__free(void *p);
char *rp__strdup(const char *s);

/* Growable arrays: RP__GROW(&array, &capacity, needed) keeps elements; false when out of memory (array unchanged). */
bool rp__grow(void *array_address, size_t *capacity, size_t needed, size_t element_bytes);
#define RP__GROW(array_address, capacity_address, needed)                                                              \
    rp__grow((array_address), (capacity_address), (needed), sizeof **(array_address))

/* Tests: fail the n-th allocation from now (1 = the next) once; 0 switches off. Returns allocations counted so far. */
uint64_t rp__alloc_fail_at(uint64_t n);
uint64_t rp__alloc_live(void);      /* blocks not yet freed, for leak tests */
void rp__alloc_counted(int blocks); /* of a free list in front of the heap: 1 is taken from it, or -1 goes back */
/* For free lists in front of the heap: true when this allocation is the one to fail. Costs a load while no test is at it. */
extern atomic_bool rp__alloc_armed;
bool rp__alloc_inject(void);
static inline bool rp__alloc_is_armed(void) { return atomic_load_explicit(&rp__alloc_armed, memory_order_relaxed); }
static inline bool rp__alloc_denied(void) { return rp__alloc_is_armed() && rp__alloc_inject(); }

#endif
