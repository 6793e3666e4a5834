/* The CPU pool: runs the slices of one launch at a time on a few threads. Owns the workers; callers of rp__parallel take part
   themselves. A job is published in one atomic word (serial number, slices left), so that a late worker can never take a
   slice of a job that has ended. Must not be used for anything that blocks. */
#include "core/thread.h"

#include "core/alloc.h"
#include "core/env.h"
#include "core/flags.h"
#include "core/fork.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    MAX_THREADS = 256,
    MAX_TEAM = 16,
    TEAM_STACK = 16 << 20, /* compilers recurse; untouched pages cost nothing */
    SPINS = 400,           /* about 10 us: a little longer than the gap between two launches of an eager loop */
    /* Turns of SPINS_A_YIELD and a yield after them, some 300 us: a portion of a long launch that one thread ends early, and
       what lies between two long launches, cost less than sleeping and being woken. */
    YIELDS = 300,
    SPINS_A_YIELD = 32,
    BLOCKS_A_THREAD = 4 /* slices are taken in this many portions a thread: balance without contention */
};

static struct {
    rp__mutex lock; /* sleeping, waking, starting workers */
    pthread_cond_t wake, finished;
    atomic_bool busy; /* a job is running */
    atomic_int size;  /* threads that take part, the caller included; 0: not yet decided */
    int workers;      /* threads started; under lock */
    atomic_int sleepers;
    _Atomic uint64_t state; /* serial << 32 | portions not yet taken */
    atomic_int done;        /* portions finished */
    atomic_bool caller_waits;
    /* the job: written before state is published, read after a portion was taken */
    rp__slice *body;
    void *ctx;
    int64_t n, portion;
    uint32_t portions;
    rp__site_frame frame;
    rp_status status; /* first failure of a worker; under lock */
    rp__error_state error;
} pool = {.lock = RP__MUTEX_INIT, .wake = PTHREAD_COND_INITIALIZER, .finished = PTHREAD_COND_INITIALIZER};

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* In the child of a fork there are no workers, and a job that ran in another thread of the parent is gone. */
static void reset_after_fork(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.finished, NULL);
    pool.workers = 0;
    atomic_store(&pool.busy, false);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.state, 0);
    atomic_store(&pool.caller_waits, false);
}

static void register_fork_handler(void) { rp__fork_handler_add(reset_after_fork); }

static int usable_processors(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

_Static_assert(MAX_THREADS == 256, "src/core/env.def names it");
int rp__threads_wanted(void) { return (int)rp__env_number("REPRISE_NUM_THREADS", 0); }

static int pool_size(void) {
    int size = atomic_load_explicit(&pool.size, memory_order_relaxed);
    if (RP__LIKELY(size > 0)) return size;
    int decided = rp__threads_wanted();
    if (!decided) decided = usable_processors();
    if (decided > MAX_THREADS) decided = MAX_THREADS;
    int none = 0;
    return atomic_compare_exchange_strong(&pool.size, &none, decided) ? decided : none;
}

int rp_num_threads(void) { return pool_size(); }

rp_status rp_set_num_threads_at(const char *site, int n) {
    RP__CALLED_FROM(site);
    if (n < 1)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "set_num_threads: expected a positive number of threads, got %d", n);
    if (n > MAX_THREADS)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "set_num_threads: the CPU pool has at most %d threads, not %d",
                        MAX_THREADS, n);
    atomic_store(&pool.size, n);
    return RP_OK;
}

/* Takes portions of the job that `serial` names until none is left. */
static void take_portions(uint64_t serial, bool worker) {
    uint64_t state = atomic_load_explicit(&pool.state, memory_order_acquire);
    while (state >> 32 == serial && (uint32_t)state > 0) {
        if (!atomic_compare_exchange_weak_explicit(&pool.state, &state, state - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        int64_t begin = (int64_t)((uint32_t)state - 1) * pool.portion;
        int64_t end = pool.n - begin > pool.portion ? begin + pool.portion : pool.n;
        int total = (int)pool.portions; /* after the last portion is reported, the job's fields are the next job's */
        rp__site_frame outer = worker ? rp__site_enter(pool.frame) : (rp__site_frame){0};
        pool.body(pool.ctx, begin, end);
        if (worker) {
            rp__site_pop(outer);
            if (RP__UNLIKELY(rp_failed())) {
                rp__lock(&pool.lock);
                if (pool.status == RP_OK) {
                    pool.status = rp_error_status();
                    rp__error_save(&pool.error);
                } else {
                    rp_error_take();
                }
                rp__unlock(&pool.lock);
            }
        }
        if (atomic_fetch_add(&pool.done, 1) + 1 == total && atomic_load(&pool.caller_waits)) {
            rp__lock(&pool.lock);
            pthread_cond_signal(&pool.finished);
            rp__unlock(&pool.lock);
        }
        state = atomic_load_explicit(&pool.state, memory_order_acquire);
    }
}

/* Something to wait for that comes soon, or never: turn 0, 1, 2, ... of waiting for it. False: time to sleep. */
static bool wait_awake(int turn) {
    if (turn >= SPINS + YIELDS * SPINS_A_YIELD) return false;
    relax();
    if (turn >= SPINS && turn % SPINS_A_YIELD == 0) sched_yield(); /* others may have work for this processor */
    return true;
}

static void *worker_main(void *argument) {
    int index = (int)(intptr_t)argument; /* 1 and up: the caller is 0 */
    rp__flags.in_slice = true;
    for (;;) {
        uint64_t state = 0;
        for (int i = 0; wait_awake(i); i++) {
            state = atomic_load_explicit(&pool.state, memory_order_acquire);
            if ((uint32_t)state > 0) break;
        }
        if ((uint32_t)state > 0 && index < atomic_load_explicit(&pool.size, memory_order_relaxed)) {
            take_portions(state >> 32, true);
            continue;
        }
        rp__lock(&pool.lock);
        atomic_fetch_add(&pool.sleepers, 1);
        while ((uint32_t)atomic_load(&pool.state) == 0 || index >= atomic_load(&pool.size))
            pthread_cond_wait(&pool.wake, &pool.lock);
        atomic_fetch_sub(&pool.sleepers, 1);
        rp__unlock(&pool.lock);
    }
    return NULL;
}

/* A pool that cannot start all its threads works with those that it has. */
static void start_workers(int size) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handler);
    rp__lock(&pool.lock);
    while (pool.workers < size - 1) {
        pthread_attr_t attributes;
        pthread_t thread;
        sigset_t all, old;
        if (pthread_attr_init(&attributes)) break;
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the program's threads */
        int failed = pthread_create(&thread, &attributes, worker_main, (void *)(intptr_t)(pool.workers + 1));
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        pthread_attr_destroy(&attributes);
        if (failed) break;
        pool.workers++;
    }
    rp__unlock(&pool.lock);
}

static void wait_for(int total) {
    for (int i = 0; wait_awake(i); i++) {
        if (atomic_load_explicit(&pool.done, memory_order_acquire) == total) return;
    }
    rp__lock(&pool.lock);
    atomic_store(&pool.caller_waits, true);
    while (atomic_load(&pool.done) != total) pthread_cond_wait(&pool.finished, &pool.lock);
    atomic_store(&pool.caller_waits, false);
    rp__unlock(&pool.lock);
}

/* The calling thread does it all. The status is that of a failure that the body reported, if it did. */
static rp_status run_serial(int64_t n, rp__slice *body, void *ctx) {
    uint64_t before = rp__error_count();
    body(ctx, 0, n);
    return rp__status_since(before);
}

rp_status rp__parallel(int64_t n, int64_t grain, rp__slice *body, void *ctx) {
    if (n <= 0) return RP_OK;
    if (grain < 1) grain = 1;
    int size;
    if (n <= grain || rp__flags.in_slice || (size = pool_size()) == 1) return run_serial(n, body, ctx);
    if (atomic_exchange_explicit(&pool.busy, true, memory_order_acquire)) /* another thread's job has the pool */
        return run_serial(n, body, ctx);
    if (RP__UNLIKELY(pool.workers < size - 1)) start_workers(size);

    int64_t slices = n / grain + (n % grain != 0);
    int64_t portions = slices < (int64_t)size * BLOCKS_A_THREAD ? slices : (int64_t)size * BLOCKS_A_THREAD;
    int64_t slices_each = slices / portions + (slices % portions != 0);
    pool.portion = slices_each * grain;
    pool.portions = (uint32_t)(n / pool.portion + (n % pool.portion != 0));
    pool.body = body;
    pool.ctx = ctx;
    pool.n = n;
    pool.frame = (rp__site_frame){rp__site(), rp__site_op()};
    pool.status = RP_OK;
    int total = (int)pool.portions;
    atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
    uint64_t serial = ((atomic_load_explicit(&pool.state, memory_order_relaxed) >> 32) + 1) & UINT32_MAX;
    atomic_store(&pool.state, serial << 32 | pool.portions);
    if (atomic_load(&pool.sleepers) > 0) {
        rp__lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        rp__unlock(&pool.lock);
    }
    uint64_t before = rp__error_count();
    rp__flags.in_slice = true;
    take_portions(serial, false);
    rp__flags.in_slice = false;
    wait_for(total);
    rp_status status = rp__status_since(before);
    if (RP__UNLIKELY(pool.status != RP_OK)) status = rp__error_adopt(&pool.error);
    atomic_store_explicit(&pool.busy, false, memory_order_release);
    return status;
}

/* ---- teams */

typedef struct team {
    atomic_int_fast64_t next;
    int64_t n;
    void (*body)(void *ctx, int64_t k);
    void *ctx;
} team;

static void *team_main(void *argument) {
    team *t = argument;
    for (int64_t k; (k = atomic_fetch_add(&t->next, 1)) < t->n;) t->body(t->ctx, k);
    return NULL;
}

void rp__team(int64_t n, void (*body)(void *ctx, int64_t k), void *ctx) {
    team t = {.n = n, .body = body, .ctx = ctx};
    pthread_t threads[MAX_TEAM];
    pthread_attr_t attributes;
    int size = pool_size(), started = 0;
    if (size > MAX_TEAM) size = MAX_TEAM;
    if (size > n) size = (int)n;
    if (size > 1 && pthread_attr_init(&attributes) == 0) {
        sigset_t all, old;
        (void)pthread_attr_setstacksize(&attributes, TEAM_STACK);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the program's threads */
        while (started < size - 1 && pthread_create(&threads[started], &attributes, team_main, &t) == 0) started++;
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        pthread_attr_destroy(&attributes);
    }
    (void)team_main(&t);
    for (int k = 0; k < started; k++) pthread_join(threads[k], NULL);
}

/* ---- what threads keep */

/* No lock, which a fork could leave taken: of two threads that make the key, the later one takes its own back. */
bool rp__thread_keep(rp__thread_end *e, void *kept) {
    uint64_t key = atomic_load_explicit(&e->key, memory_order_acquire);
    if (key == 0) {
        pthread_key_t made;
        if (pthread_key_create(&made, e->end) != 0) return false;
        if (atomic_compare_exchange_strong(&e->key, &key, (uint64_t)made + 1))
            key = (uint64_t)made + 1;
        else
            (void)pthread_key_delete(made);
    }
    return pthread_setspecific((pthread_key_t)(key - 1), kept) == 0;
}

void *rp__thread_new(rp__thread_end *e, size_t bytes) {
    void *kept = rp__calloc(1, bytes);
    if (kept && rp__thread_keep(e, kept)) return kept;
    rp__free(kept);
    return NULL;
}
