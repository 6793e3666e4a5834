/* Grids on the CPU. A device thread is a fiber: it runs until it waits (barrier, warp function, rp_grid_wait) or ends,
 * and the next one is drawn from the seed. A stack that finishes its thread takes the next unstarted thread of the
 * block, so kernels that never wait pay no switch. Blocks start in a drawn order and run to their end, except that
 * blocks which stop at rp_grid_wait or spin on another block's write stay resident while others run. Static shared
 * variables are one copy a kernel: they are saved and restored when two blocks of a kernel alternate. A fault (bad
 * address, barrier that cannot complete, diverged warp) ends the grid, prints a reason, and sets sim_sticky. Everything
 * runs on the thread that holds the driver's lock. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "sim.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)128 << 10)
#define STACK_SLAB 32
#define MAX_RESIDENT_EARLY 6 /* blocks of a grid that may stand at rp_grid_wait at once */
#define MAX_SUSPENDED 6144   /* fibers of all grids; beyond it no further early block is begun */
#define SPIN_LIMIT 2000      /* turns without progress, and 20 more a resident block, that count as a deadlock */

/* ---- The switch: saves the callee-saved registers on the stack and loads another stack ---- */

#if defined(__x86_64__)
void cudasim_switch(void **save, void *load);
__asm__(".text\n.p2align 4\n.type cudasim_switch,@function\n.local cudasim_switch\ncudasim_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size cudasim_switch,.-cudasim_switch\n");
static void *stack_prepare(unsigned char *top, void (*entry)(void)) {
    void **sp = (void **)(void *)top;
    *--sp = NULL; /* the entry's return address: it never returns; keeps the ABI's alignment */
    *--sp = (void *)(uintptr_t)entry;
    for (int i = 0; i < 6; i++) {
        *--sp = NULL;
    }
    return sp;
}
#elif defined(__aarch64__)
void cudasim_switch(void **save, void *load);
__asm__(
    ".text\n.p2align 4\n.type cudasim_switch,%function\n.local cudasim_switch\ncudasim_switch:\n"
    "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\n"
    "stp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
    "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n"
    ".size cudasim_switch,.-cudasim_switch\n");
static void *stack_prepare(unsigned char *top, void (*entry)(void)) {
    void **sp = (void **)(void *)(top - 160);
    memset(sp, 0, 160);
    sp[11] = (void *)(uintptr_t)entry; /* x30 */
    return sp;
}
#else
#define CONTEXT_ROOM ((sizeof(ucontext_t) + 63) / 64 * 64)
/* The portable form: `sp` points at a ucontext kept at the low end of the stack. */
static void cudasim_switch(void **save, void *load) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, load);
}
static void *stack_prepare(unsigned char *top, void (*entry)(void)) {
    ucontext_t *u = (ucontext_t *)(void *)(top - STACK_BYTES);
    getcontext(u);
    u->uc_stack.ss_sp = top - STACK_BYTES + CONTEXT_ROOM;
    u->uc_stack.ss_size = STACK_BYTES - CONTEXT_ROOM;
    makecontext(u, entry, 0);
    return u;
}
#endif

typedef struct stack {
    unsigned char *top;
    struct stack *next;
} stack;

typedef struct async_copy {
    void *to;
    const void *from;
    unsigned int size, valid, group;
} async_copy;

enum { T_NEW, T_READY, T_BARRIER, T_WARP, T_GRID, T_DONE };

typedef struct dthread {
    void *sp; /* while it waits */
    struct cudasim_thread pub;
    stack *stack;
    int state;
    unsigned int index;
    unsigned int exchanges, clusters; /* warp functions and cluster barriers so far */
    async_copy *copies;
    unsigned int n_copies, cap_copies, group;
} dthread;

typedef struct warp {
    struct cudasim_exchange buffer[2];
    unsigned int present, arrived, gone;
    int kind;
} warp;

typedef struct sim_block {
    sim_grid *grid;
    struct cudasim_dim3 index;
    dthread *threads;
    warp *warps;
    unsigned int n, started, step, offset; /* unstarted threads in a drawn order: (offset + i * step) % n */
    unsigned int *ready;                   /* threads that can go on */
    unsigned int n_ready;
    unsigned int done, at_barrier, at_grid;
    int barrier_line;
    unsigned char *dynamic_map, *saved;
    size_t dynamic_bytes;
    bool progress; /* something other than spinning happened in this turn */
    struct sim_block *next;
} block;

struct sim_grid {
    sim_launch launch;
    unsigned long long n_blocks, begun, step, offset;
    block *resident;
    unsigned int n_resident;
    bool wait;
    bool faulted;
    unsigned int block_threads;
    /* made at the first cluster barrier: its blocks, arrivals of threads a cluster, which blocks have begun */
    unsigned int cluster;
    unsigned long long *cluster_arrivals;
    bool *has_begun;
    unsigned long long drawn; /* block numbers, as begun unless a cluster's came out of turn */
};

static struct cudasim_runtime runtime;
static stack *free_stacks;
static unsigned int n_suspended; /* fibers that hold a stack while another grid runs */
static void *scheduler_sp;
static block *current_block;
static dthread *current;
static bool fault_now;
static CUresult fault_code;
static volatile sig_atomic_t in_fiber;
static pthread_t fiber_thread;
extern cudasim_counters sim_counters;

unsigned int sim_fibers_suspended(void) { return n_suspended; }

/* ---- Stacks ---- */

static stack *stack_take(void) {
    if (!free_stacks) {
        static unsigned int colour; /* tops at one place of their pages would push each other out of the first cache */
        size_t page = (size_t)sysconf(_SC_PAGESIZE), each = STACK_BYTES + 2 * page;
        unsigned char *slab =
            mmap(NULL, each * STACK_SLAB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (slab == MAP_FAILED) {
            sim_complain("no address space for fiber stacks");
            abort();
        }
        for (int i = 0; i < STACK_SLAB; i++) { /* a guard page below each */
            if (mprotect(slab + each * (size_t)i + page, each - page, PROT_READ | PROT_WRITE) != 0) {
                sim_complain("no memory for fiber stacks");
                abort();
            }
            stack *s = sim_alloc(1, sizeof *s);
            s->top = slab + each * (size_t)(i + 1) - 64 * (colour++ * 23 % 64);
            s->next = free_stacks;
            free_stacks = s;
        }
    }
    stack *s = free_stacks;
    free_stacks = s->next;
    return s;
}

static void stack_give(stack *s) {
    s->next = free_stacks;
    free_stacks = s;
}

/* ---- Faults ---- */

static void to_scheduler(void) {
    in_fiber = 0;
    cudasim_switch(&current->sp, scheduler_sp);
    in_fiber = 1;
}

static void where(char *text, size_t size) {
    snprintf(text, size, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u)",
             current_block->grid->launch.function->kernel->name, current_block->index.x, current_block->index.y,
             current_block->index.z, current->pub.thread_idx.x, current->pub.thread_idx.y, current->pub.thread_idx.z);
}

/* Ends the running thread's grid; does not return into the kernel. */
static void fault(CUresult code, const char *text) {
    char at[256];
    where(at, sizeof at);
    sim_complain("%s: %s", at, text);
    fault_now = true;
    fault_code = code;
    for (;;) {
        to_scheduler();
    }
}

static struct sigaction old_segv, old_bus;
static CUresult landing_code;
static char landing_text[256];

/* Where a thread that faulted goes on: outside of the signal handler, at the top of its own stack. */
static void landing(void) { fault(landing_code, landing_text); }

static void on_signal(int number, siginfo_t *info, void *context) {
    if (in_fiber && pthread_equal(pthread_self(), fiber_thread)) {
        const unsigned char *at = info->si_addr;
        unsigned char *top = current->stack->top;
        if (at < top && at >= top - STACK_BYTES - 65536) {
            landing_code = CUDA_ERROR_HARDWARE_STACK_ERROR;
            snprintf(landing_text, sizeof landing_text, "the thread's stack is too small for its local variables");
        } else {
            char near[128];
            sim_memory_describe(at, near, sizeof near);
            landing_code = CUDA_ERROR_ILLEGAL_ADDRESS;
            snprintf(landing_text, sizeof landing_text, "access to address %p: %s", info->si_addr, near);
        }
#if defined(__x86_64__)
        ucontext_t *u = context;
        u->uc_mcontext.gregs[REG_RSP] = (greg_t)(uintptr_t)(top - 264); /* as behind a call: 8 below a multiple of 16 */
        u->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)landing;
        return;
#elif defined(__aarch64__)
        ucontext_t *u = context;
        u->uc_mcontext.sp = (uintptr_t)(top - 256);
        u->uc_mcontext.pc = (uintptr_t)landing;
        return;
#else
        landing();
#endif
    }
    const struct sigaction *old = number == SIGSEGV ? &old_segv : &old_bus;
    if (old->sa_flags & SA_SIGINFO) {
        old->sa_sigaction(number, info, context);
    } else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) {
        old->sa_handler(number);
    } else {
        signal(number, SIG_DFL); /* the access happens again and ends the process as it would have */
    }
}

/* Signals of fibers need a stack of their own: a fiber may have overflowed. One a thread, made when it first runs a
 * grid. */
#define SIGNAL_STACK_BYTES ((size_t)64 << 10)
static pthread_key_t signal_stack;

static void signal_stack_free(void *p) {
    stack_t none = {.ss_flags = SS_DISABLE};
    sigaltstack(&none, NULL);
    munmap(p, SIGNAL_STACK_BYTES);
}

static void signals_prepare(void) {
    stack_t s;
    if (sigaltstack(NULL, &s) == 0 && (s.ss_flags & SS_DISABLE)) {
        void *p = mmap(NULL, SIGNAL_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p != MAP_FAILED) {
            s = (stack_t){.ss_sp = p, .ss_size = SIGNAL_STACK_BYTES};
            sigaltstack(&s, NULL);
            pthread_setspecific(signal_stack, p);
        }
    }
    fiber_thread = pthread_self();
    /* Only while a grid runs: between runs the handlers are the program's. */
    struct sigaction a = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&a.sa_mask);
    sigaction(SIGSEGV, &a, &old_segv);
    sigaction(SIGBUS, &a, &old_bus);
}

static void signals_restore(void) {
    sigaction(SIGSEGV, &old_segv, NULL);
    sigaction(SIGBUS, &old_bus, NULL);
}

/* ---- Shared memory ---- */

static size_t static_bytes(const struct cudasim_kernel *k) { return (size_t)(k->shared_end - k->shared); }

/* Dynamic shared memory ends at an unreadable page. */
static void dynamic_new(block *b, unsigned int bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t rounded = ((size_t)bytes + 15) / 16 * 16, pages = (rounded + page - 1) / page * page;
    unsigned char *p = mmap(NULL, pages + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || (pages && mprotect(p, pages, PROT_READ | PROT_WRITE) != 0)) {
        sim_complain("no memory for shared memory");
        abort();
    }
    memset(p, 0xff, pages);
    b->dynamic_map = p;
    b->dynamic_bytes = pages + page;
    for (unsigned int i = 0; i < b->n; i++) {
        b->threads[i].pub.dynamic_shared = p + pages - rounded;
    }
}

static void shared_claim(block *b) {
    CUfunction f = b->grid->launch.function;
    size_t bytes = static_bytes(f->kernel);
    if (bytes == 0 || f->shared_owner == b) {
        return;
    }
    if (f->shared_owner) {
        block *o = f->shared_owner;
        if (!o->saved) {
            o->saved = sim_alloc(bytes, 1);
        }
        memcpy(o->saved, f->kernel->shared, bytes);
    }
    if (b->saved) {
        memcpy(f->kernel->shared, b->saved, bytes);
    } else {
        memset(f->kernel->shared, 0xff, bytes);
    }
    f->shared_owner = b;
}

/* ---- Threads ---- */

static void make_ready(block *b, dthread *t) {
    t->state = T_READY;
    b->ready[b->n_ready++] = t->index;
    b->progress = true;
}

static void run_copies(dthread *t, unsigned int up_to) {
    unsigned int left = 0;
    for (unsigned int i = 0; i < t->n_copies; i++) {
        async_copy c = t->copies[i];
        if (c.group >= up_to) {
            t->copies[left++] = c;
            continue;
        }
        if (c.valid) {
            memcpy(c.to, c.from, c.valid);
        }
        memset((unsigned char *)c.to + c.valid, 0, c.size - c.valid);
    }
    t->n_copies = left;
}

static void thread_end(block *b, dthread *t) {
    run_copies(t, t->group + 1);
    t->state = T_DONE;
    b->done++;
    b->progress = true;
    b->warps[t->index / CUDASIM_WARP].gone |= 1u << t->pub.lane;
    if (b->at_barrier > 0) {
        fault(CUDA_ERROR_LAUNCH_FAILED,
              "the thread returned while others of its block wait at rp_barrier: the barrier cannot complete");
    }
    if (b->warps[t->index / CUDASIM_WARP].arrived) {
        fault(CUDA_ERROR_LAUNCH_FAILED, "the thread returned while other lanes of its warp wait in a warp function");
    }
}

static dthread *next_unstarted(block *b) {
    if (b->started == b->n) {
        return NULL;
    }
    unsigned int i = (unsigned int)((b->offset + (unsigned long long)b->started++ * b->step) % b->n);
    return &b->threads[i];
}

/* A stack's life: one thread after the other until some thread has waited on this stack and another is due. */
static void fiber_main(void) {
    in_fiber = 1;
    for (;;) {
        block *b = current_block;
        dthread *t = current;
        t->state = T_READY;
        runtime.self = &t->pub;
        b->grid->launch.function->kernel->run(b->grid->launch.arguments);
        b = current_block; /* the same, but perhaps another turn of it */
        t = current;
        thread_end(b, t);
        dthread *after = b->n_ready && sim_random(2) ? NULL : next_unstarted(b);
        if (!after) {
            to_scheduler(); /* does not return: the stack is prepared anew for its next thread */
        }
        after->stack = t->stack;
        t->stack = NULL;
        current = after;
    }
}

/* Waits in `state`; others run. */
static void suspend(int state) {
    dthread *t = current;
    t->state = state;
    to_scheduler();
    runtime.self = &t->pub;
}

/* The value read next may be another thread's: let others have their turn. It is no progress, so a block of which only
 * such threads are left gives up its turn, and a grid of such blocks is a deadlock. */
static void rt_spin(void) {
    block *b = current_block;
    bool progress = b->progress;
    make_ready(b, current);
    b->progress = progress;
    suspend(T_READY);
}

static void rt_yield(void) {
    runtime.race = 1 + (int)sim_random(64);
    rt_spin();
}

static void rt_barrier(int line) {
    block *b = current_block;
    if (b->done > 0) {
        fault(CUDA_ERROR_LAUNCH_FAILED,
              "rp_barrier after a thread of the block has returned: the barrier cannot complete");
    }
    if (b->at_barrier > 0 && line != 0 && b->barrier_line != 0 && line != b->barrier_line) {
        char text[128];
        snprintf(text, sizeof text, "threads of one block wait at different barriers, lines %d and %d", b->barrier_line,
                 line);
        fault(CUDA_ERROR_LAUNCH_FAILED, text);
    }
    b->barrier_line = line;
    if (++b->at_barrier < b->n) {
        suspend(T_BARRIER);
        return;
    }
    b->at_barrier = 0;
    for (unsigned int i = 0; i < b->n; i++) {
        if (b->threads[i].state == T_BARRIER) {
            make_ready(b, &b->threads[i]);
        }
    }
    rt_yield(); /* the last to come is not always the first to go on */
}

static const struct cudasim_exchange *rt_exchange(int kind, const void *value, unsigned int size) {
    block *b = current_block;
    dthread *t = current;
    warp *w = &b->warps[t->index / CUDASIM_WARP];
    struct cudasim_exchange *e = &w->buffer[t->exchanges++ & 1];
    if (w->gone) {
        fault(CUDA_ERROR_LAUNCH_FAILED, "a warp function after a lane of the warp has returned");
    }
    if (w->arrived == 0) {
        memset(e->slot, 0xff, sizeof e->slot);
        e->lanes = w->present;
        w->kind = kind;
    } else if (w->kind != kind) {
        fault(CUDA_ERROR_LAUNCH_FAILED, "lanes of one warp meet in different warp functions");
    }
    memcpy(e->slot[t->pub.lane], value, size);
    w->arrived |= 1u << t->pub.lane;
    if (w->arrived != w->present) {
        suspend(T_WARP);
        return e;
    }
    w->arrived = 0;
    unsigned int first = t->index / CUDASIM_WARP * CUDASIM_WARP;
    for (unsigned int i = first; i < first + CUDASIM_WARP && i < b->n; i++) {
        if (b->threads[i].state == T_WARP) {
            make_ready(b, &b->threads[i]);
        }
    }
    return e;
}

static void rt_grid_wait(void) {
    block *b = current_block;
    while (b->grid->wait) {
        b->at_grid++;
        suspend(T_GRID);
    }
}

static void rt_launch_dependents(void) {
    runtime.race = 0; /* dependents have begun before; only let other threads overtake soon */
}

static void rt_set_conditional(unsigned long long handle, unsigned int value) {
    if (!sim_handle_is((void *)(uintptr_t)handle, SIM_COND)) {
        fault(CUDA_ERROR_LAUNCH_FAILED, "rp_set_conditional with a value that is no conditional handle");
    }
    sim_cond_set(handle, value);
}

static unsigned long long block_number(const block *b) {
    const unsigned int *grid = b->grid->launch.grid;
    return b->index.x + (unsigned long long)grid[0] * (b->index.y + (unsigned long long)grid[1] * b->index.z);
}

/* A cluster is n neighbours along x. The thread spins: blocks of the cluster that have not begun then do. */
static void rt_cluster_barrier(unsigned int n, int line) {
    block *b = current_block;
    sim_grid *g = b->grid;
    (void)line;
    if (n == 0 || g->launch.grid[0] % n) {
        fault(CUDA_ERROR_LAUNCH_FAILED, "rp_cluster_barrier: the grid does not consist of clusters of that size");
    }
    if (!g->cluster_arrivals) {
        g->cluster = n;
        g->cluster_arrivals = sim_alloc((size_t)(g->n_blocks / n), sizeof *g->cluster_arrivals);
        g->has_begun = sim_alloc((size_t)g->n_blocks, sizeof *g->has_begun);
        for (const block *i = g->resident; i; i = i->next) { /* none has ended without this barrier */
            g->has_begun[block_number(i)] = true;
        }
    }
    unsigned long long *arrivals = &g->cluster_arrivals[block_number(b) / n];
    const unsigned long long all = (unsigned long long)++current->clusters * n * b->n;
    ++*arrivals;
    b->progress = true;
    while (*arrivals < all) {
        rt_spin();
    }
}

/* Where block `rank` of this cluster has what this block has at the shared variable `at`. */
static void *cluster_place(const void *at, unsigned int size, unsigned int rank, unsigned int n) {
    block *b = current_block;
    const struct cudasim_kernel *k = b->grid->launch.function->kernel;
    const unsigned char *from = at;
    const unsigned char *dynamic = current->pub.dynamic_shared;
    const bool moves = b->dynamic_map && from >= dynamic && from + size <= dynamic + b->grid->launch.shared_bytes;
    if ((!moves && (from < k->shared || from + size > k->shared_end)) || rank >= n) {
        fault(CUDA_ERROR_ILLEGAL_ADDRESS, "rp_cluster_read or _write of what is no shared variable, or of no block");
    }
    const unsigned long long number = block_number(b) / n * n + rank;
    for (block *other = b->grid->resident; other; other = other->next) {
        if (block_number(other) != number) {
            continue;
        }
        return moves        ? other->threads[0].pub.dynamic_shared + (from - dynamic)
               : other == b ? k->shared + (from - k->shared)
                            : other->saved + (from - k->shared);
    }
    fault(CUDA_ERROR_ILLEGAL_ADDRESS, "rp_cluster_read or _write of a block that does not run: a barrier is missing");
    return NULL;
}

static void rt_cluster_read(void *to, const void *at, unsigned int size, unsigned int rank, unsigned int n) {
    memcpy(to, cluster_place(at, size, rank, n), size);
}

static void rt_cluster_write(void *at, const void *from, unsigned int size, unsigned int rank, unsigned int n) {
    memcpy(cluster_place(at, size, rank, n), from, size);
}

static void rt_copy_async(void *to, const void *from, unsigned int size, unsigned int valid) {
    dthread *t = current;
    if (sim_random(2)) { /* it may be done at once or at the last moment */
        if (valid) {
            memcpy(to, from, valid);
        }
        memset((unsigned char *)to + valid, 0, size - valid);
        return;
    }
    if (t->n_copies == t->cap_copies) {
        t->cap_copies = t->cap_copies ? t->cap_copies * 2 : 8;
        t->copies = sim_grow(t->copies, t->cap_copies, sizeof *t->copies);
    }
    t->copies[t->n_copies++] = (async_copy){to, from, size, valid, t->group};
}

static void rt_copy_async_commit(void) { current->group++; }

static void rt_copy_async_wait(int n) {
    dthread *t = current;
    if ((unsigned int)n <= t->group) {
        run_copies(t, t->group - (unsigned int)n);
    }
}

static void rt_misaligned(const void *address, unsigned int size) {
    char text[128];
    snprintf(text, sizeof text, "access of %u bytes at address %p, which is not a multiple", size, address);
    fault(CUDA_ERROR_MISALIGNED_ADDRESS, text);
}

static unsigned long long rt_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec;
}

static struct cudasim_runtime runtime = {
    .yield = rt_yield,
    .spin = rt_spin,
    .barrier = rt_barrier,
    .exchange = rt_exchange,
    .grid_wait = rt_grid_wait,
    .launch_dependents = rt_launch_dependents,
    .set_conditional = rt_set_conditional,
    .cluster_barrier = rt_cluster_barrier,
    .cluster_read = rt_cluster_read,
    .cluster_write = rt_cluster_write,
    .copy_async = rt_copy_async,
    .copy_async_commit = rt_copy_async_commit,
    .copy_async_wait = rt_copy_async_wait,
    .misaligned = rt_misaligned,
    .clock_ns = rt_clock_ns,
};

struct cudasim_runtime *sim_runtime(void);
struct cudasim_runtime *sim_runtime(void) {
    return &runtime;
}

void sim_exec_start(void) { pthread_key_create(&signal_stack, signal_stack_free); }

/* ---- Blocks ---- */

static unsigned long long gcd(unsigned long long a, unsigned long long b) {
    while (b) {
        unsigned long long r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* A step that visits each of n things once. */
static unsigned long long drawn_step(unsigned long long n) {
    unsigned long long step = 1 + sim_random(n > 0x7fffffff ? 0x7fffffff : (uint32_t)n);
    while (gcd(step, n) != 1) {
        step++;
    }
    return step;
}

/* Blocks of one grid are all of one size: their memory is used again. */
static block *block_new(sim_grid *g, unsigned long long number) {
    const sim_launch *l = &g->launch;
    unsigned int n = g->block_threads;
    block *b = sim_alloc(1, sizeof *b);
    b->grid = g;
    b->n = n;
    b->index.x = (unsigned int)(number % l->grid[0]);
    b->index.y = (unsigned int)(number / l->grid[0] % l->grid[1]);
    b->index.z = (unsigned int)(number / l->grid[0] / l->grid[1]);
    b->threads = sim_alloc(n, sizeof *b->threads);
    b->ready = sim_alloc(n, sizeof *b->ready);
    unsigned int warps = (n + CUDASIM_WARP - 1) / CUDASIM_WARP;
    b->warps = sim_grow(NULL, warps, sizeof *b->warps);
    for (unsigned int i = 0; i < warps; i++) { /* the buffers are filled when they are used */
        b->warps[i].present = b->warps[i].arrived = b->warps[i].gone = 0;
    }
    b->step = (unsigned int)drawn_step(n);
    b->offset = sim_random(n);
    for (unsigned int i = 0; i < n; i++) {
        dthread *t = &b->threads[i];
        t->index = i;
        t->pub.thread_idx.x = i % l->block[0];
        t->pub.thread_idx.y = i / l->block[0] % l->block[1];
        t->pub.thread_idx.z = i / l->block[0] / l->block[1];
        t->pub.block_idx = b->index;
        t->pub.block_dim = (struct cudasim_dim3){l->block[0], l->block[1], l->block[2]};
        t->pub.grid_dim = (struct cudasim_dim3){l->grid[0], l->grid[1], l->grid[2]};
        t->pub.lane = i % CUDASIM_WARP;
        b->warps[i / CUDASIM_WARP].present |= 1u << t->pub.lane;
    }
    if (l->shared_bytes) {
        dynamic_new(b, l->shared_bytes);
    }
    return b;
}

static void block_free(block *b) {
    for (unsigned int i = 0; i < b->n; i++) {
        if (b->threads[i].stack) {
            stack_give(b->threads[i].stack);
        }
        free(b->threads[i].copies);
    }
    if (b->dynamic_map) {
        munmap(b->dynamic_map, b->dynamic_bytes);
    }
    if (b->grid->launch.function->shared_owner == b) {
        b->grid->launch.function->shared_owner = NULL;
    }
    free(b->saved);
    free(b->threads);
    free(b->ready);
    free(b->warps);
    free(b);
}

/* Gives the block one turn: until it is done, all its threads wait for the grid's predecessors, or only spinning
 * threads are left. */
static void block_run(block *b) {
    current_block = b;
    shared_claim(b);
    b->progress = false;
    unsigned int idle = 0;
    while (b->done < b->n) {
        bool fresh = b->started < b->n && (b->n_ready == 0 || sim_random(4) == 0);
        if (fresh) {
            current = next_unstarted(b);
            current->stack = stack_take();
            current->sp = stack_prepare(current->stack->top, fiber_main);
        } else if (b->n_ready > 0) {
            unsigned int i = sim_random(b->n_ready);
            current = &b->threads[b->ready[i]];
            b->ready[i] = b->ready[--b->n_ready];
            runtime.self = &current->pub;
        } else if (b->at_grid > 0) {
            return;
        } else {
            current = &b->threads[0];
            for (unsigned int j = 0; j < b->n; j++) {
                current = b->threads[j].state == T_BARRIER || b->threads[j].state == T_WARP ? &b->threads[j] : current;
            }
            char at[256];
            where(at, sizeof at);
            sim_complain("%s: deadlock: waits for threads of its %s that wait elsewhere", at,
                         current->state == T_BARRIER ? "block" : "warp");
            fault_now = true;
            fault_code = CUDA_ERROR_LAUNCH_FAILED;
            return;
        }
        unsigned int done = b->done, started = b->started;
        bool before = b->progress;
        b->progress = false;
        cudasim_switch(&scheduler_sp, current->sp);
        in_fiber = 0;
        if (fault_now) {
            return;
        }
        if (current->state == T_DONE) { /* the stack is free for another thread */
            stack_give(current->stack);
            current->stack = NULL;
        }
        bool moved = b->progress || b->done != done || b->started != started;
        b->progress = before || moved;
        idle = moved ? 0 : idle + 1;
        if (idle > 2 * b->n + 8) { /* every thread that can run only spins: others may have the turn */
            return;
        }
    }
}

/* ---- Grids ---- */

sim_grid *sim_grid_new(const sim_launch *launch) {
    sim_grid *g = sim_alloc(1, sizeof *g);
    g->launch = *launch;
    g->launch.arguments = sim_alloc(launch->function->bytes + 16, 1);
    if (launch->arguments) {
        memcpy(g->launch.arguments, launch->arguments, launch->function->bytes);
    }
    g->n_blocks = (unsigned long long)launch->grid[0] * launch->grid[1] * launch->grid[2];
    g->block_threads = launch->block[0] * launch->block[1] * launch->block[2];
    g->step = drawn_step(g->n_blocks);
    g->offset = sim_random((uint32_t)(g->n_blocks > 0x7fffffff ? 0x7fffffff : g->n_blocks));
    return g;
}

void sim_grid_free(sim_grid *g) {
    n_suspended -= g->n_resident * g->block_threads;
    while (g->resident) {
        block *b = g->resident;
        g->resident = b->next;
        block_free(b);
    }
    free(g->launch.arguments);
    free(g->cluster_arrivals);
    free(g->has_begun);
    free(g);
}

static unsigned long long draw_block(sim_grid *g) {
    unsigned __int128 i = (unsigned __int128)g->drawn++ * g->step + g->offset;
    return (unsigned long long)(i % g->n_blocks);
}

/* The next block in the drawn order, or one that a cluster which has begun lacks: only whole clusters go on. */
static unsigned long long next_block(sim_grid *g) {
    if (!g->has_begun) {
        return draw_block(g);
    }
    unsigned long long number = g->n_blocks;
    for (const block *b = g->resident; b && number == g->n_blocks; b = b->next) {
        const unsigned long long first = block_number(b) / g->cluster * g->cluster;
        for (unsigned int k = 0; k < g->cluster; k++) {
            number = g->has_begun[first + k] ? number : first + k;
        }
    }
    while (number == g->n_blocks) {
        number = draw_block(g);
        number = g->has_begun[number] ? g->n_blocks : number;
    }
    g->has_begun[number] = true;
    return number;
}

static block *begin_block(sim_grid *g) {
    g->begun++;
    block *b = block_new(g, next_block(g));
    b->next = g->resident;
    g->resident = b;
    g->n_resident++;
    return b;
}

static void end_block(sim_grid *g, block *b) {
    block **link = &g->resident;
    while (*link != b) {
        link = &(*link)->next;
    }
    *link = b->next;
    g->n_resident--;
    block_free(b);
}

static bool grid_fault(sim_grid *g) {
    sim_sticky = fault_code;
    sim_counters.faults++;
    fault_now = false;
    g->faulted = true;
    while (g->resident) {
        end_block(g, g->resident);
    }
    return true;
}

/* A block that only spins may wait for one that has not begun. A few run side by side at once; more only when all are
 * stuck. */
static bool begin_beside(const sim_grid *g, unsigned long long spins) {
    return spins > 0 && (g->n_resident < 8 || spins > 4ull * g->n_resident);
}

static void wake(block *b) {
    for (unsigned int i = 0; i < b->n; i++) {
        if (b->threads[i].state == T_GRID) {
            make_ready(b, &b->threads[i]);
        }
    }
    b->at_grid = 0;
}

static bool run_blocks(sim_grid *g, bool wait) {
    runtime.race = (int)sim_random(64);
    n_suspended -= g->n_resident * g->block_threads;
    g->wait = wait;
    if (!wait) {
        for (block *b = g->resident; b; b = b->next) {
            wake(b);
        }
    }
    unsigned long long spins = 0;
    unsigned int limit = 1 + sim_random(MAX_RESIDENT_EARLY);
    for (;;) {
        block *b = NULL;
        unsigned int runnable = 0;
        for (block *i = g->resident; i; i = i->next) { /* a drawn one of those that are not at rp_grid_wait */
            if (i->n_ready + (i->n - i->started) > 0 && sim_random(++runnable) == 0) {
                b = i;
            }
        }
        bool may_begin = g->begun < g->n_blocks;
        if (wait && (g->n_resident >= limit || n_suspended + (g->n_resident + 1) * g->block_threads > MAX_SUSPENDED)) {
            may_begin = false;
        }
        if (may_begin && (!b || begin_beside(g, spins))) {
            b = begin_block(g);
        }
        if (!b) {
            break;
        }
        block_run(b);
        if (fault_now) {
            return grid_fault(g);
        }
        if (b->done == b->n) {
            end_block(g, b);
            spins = 0;
        } else if (b->at_grid == 0 || b->n_ready > 0) {
            spins = b->progress ? 0 : spins + 1;
            if (spins > SPIN_LIMIT + 20ull * g->n_resident) {
                current = &b->threads[b->ready[0]];
                char at[256];
                where(at, sizeof at);
                sim_complain("%s: deadlock: spins on a value that no running block will write", at);
                fault_code = CUDA_ERROR_LAUNCH_TIMEOUT;
                return grid_fault(g);
            }
        }
    }
    n_suspended += g->n_resident * g->block_threads;
    return g->n_resident == 0 && g->begun == g->n_blocks;
}

bool sim_grid_run(sim_grid *g, bool wait) {
    if (g->faulted) {
        return true;
    }
    signals_prepare();
    bool done = run_blocks(g, wait);
    signals_restore();
    return done;
}
