/* Threads: locks, once, and the CPU pool that runs slices of a launch. pthreads behind one header. */
#ifndef RP_CORE_THREAD_H
#define RP_CORE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef pthread_mutex_t rp__mutex;
#define RP__MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
static inline void rp__lock(rp__mutex *m) { (void)pthread_mutex_lock(m); }
static inline bool rp__trylock(rp__mutex *m) { return pthread_mutex_trylock(m) == 0; }
static inline void rp__unlock(rp__mutex *m) { (void)pthread_mutex_unlock(m); }

/* Runs body(ctx, begin, end) over [0, n) in slices that start at multiples of grain; the calling thread takes part; returns
   when all are done. Slices may run in any order and on any thread: results must not depend on it. Serial when n <= grain,
   when the pool has one thread, or inside another rp__parallel. An error set by a worker is carried to the caller.
   Survives fork (the child starts a fresh pool). */
typedef void rp__slice(void *ctx, int64_t begin, int64_t end);
rp_status rp__parallel(int64_t n, int64_t grain, rp__slice *body, void *ctx);

/* What REPRISE_NUM_THREADS asks for; 0: it is not set, or not a number that rp_set_num_threads takes. */
int rp__threads_wanted(void);

/* Runs body(ctx, k) once for each k in [0, n) on up to rp_num_threads() threads that are made for it, with large stacks, and
   have ended at the return; the calling thread takes part. For few pieces of many milliseconds, such as a compiler's, that may
   block. The body sets no sticky error. */
void rp__team(int64_t n, void (*body)(void *ctx, int64_t k), void *ctx);

/* What each thread holds of something, and gives back when it ends: one static object for the kind of thing, {.end = function}.
   `end` runs in the thread that ends, with what that kept; the thread-local pointer by which the owner finds it is the owner's,
   who sets it NULL there. */
typedef struct rp__thread_end {
    void (*end)(void *kept);
    _Atomic uint64_t key; /* + 1; 0: not made yet */
} rp__thread_end;
/* Hands `kept`, not NULL, to e->end when the calling thread ends, in place of what it kept before. False: it will not. */
bool rp__thread_keep(rp__thread_end *e, void *kept);
/* Zero bytes (rp__calloc) that are kept; NULL, and no error, when out of memory. */
void *rp__thread_new(rp__thread_end *e, size_t bytes);

#endif
