/* Tier 1: queue, compiler, loading (jit.h). One worker thread at most, started when there is work and gone when there is none;
   compilers run by posix_spawn without a shell, one at a time, for a limited time, in a folder of their own, writing files of a
   limited size. Objects are kept on disk (disk_cache.h); one that does not load is compiled again. */
#include "kernel/cpu/jit.h"

#include <dlfcn.h>
#if defined(__linux__)
#include <elf.h>
#include <link.h>
#include <sys/resource.h>
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/thread.h"
#include "kernel/disk_cache.h"
#include "reprise_embed.h"

extern char **environ;

enum {
    HOT_LAUNCHES = 32,      /* a kernel is hot after so many launches ... */
    HOT_ELEMENTS = 1 << 26, /* ... over so many elements: some tenths of a second, about what compiling costs */
    COMPILE_LIMIT_S = 60,   /* a compiler that takes longer is killed; REPRISE_CC_SECONDS */
    FILE_LIMIT = 1 << 27    /* bytes of any file that a compiler writes */
};
static const char extension[] = "so";

typedef enum state { COLD, QUEUED, READY, FAILED } state;
struct rp__jit_state {
    _Atomic(int) state;
    _Atomic uint64_t launches, elements;
    void *handle;
    char reason[256];
};
typedef struct job {
    struct job *next;
    rp__dag *dag;
    rp__kernel *kernel;
} job;
static struct {
    rp__mutex lock;
    pthread_cond_t changed;
    job *first, *last;
    job *current; /* the worker's */
    bool running; /* the worker */
    rp__jit_counters counters;
} queue = {.lock = RP__MUTEX_INIT, .changed = PTHREAD_COND_INITIALIZER};
/* Held while the worker changes what a fork must find whole: the loader's state, the compiler's name. */
static rp__mutex loading = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_queue, &queue.lock, 1)
RP__LOCKS_SURVIVE_FORK(fork_loading, &loading, 1)

typedef enum mode { MODE_UNKNOWN, MODE_OFF, MODE_HOT, MODE_WAIT } mode;
static mode mode_of(void) {
    static _Atomic(int) known;
    int m = atomic_load_explicit(&known, memory_order_relaxed);
    if (RP__LIKELY(m != MODE_UNKNOWN)) return (mode)m;
    const char *text = rp__env("REPRISE_JIT"), *cc = rp__env("REPRISE_CC");
    m = text && !strcmp(text, "0") ? MODE_OFF : text && !strcmp(text, "wait") ? MODE_WAIT : MODE_HOT;
    /* A program with more rights than whoever started it would look for the compiler where that one says. */
    if ((cc && !strcmp(cc, "none")) || rp__env_ignored()) m = MODE_OFF;
    atomic_store_explicit(&known, m, memory_order_relaxed);
    return (mode)m;
}
static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- running a compiler ---------------------------------------------------------------------------------------------- */

/* The compiler that runs. */
static rp__mutex compiling = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_compiling, &compiling, 1)
static struct {
    atomic_long parent; /* this process; 0: none ran yet. Read without the lock */
    pid_t group;        /* its leader; 0: none runs */
    bool ended;         /* none may start any more */
} compiler_run;

/* The process ends: nobody would wait for what a compiler makes, nor stop it where it never ends. */
__attribute__((destructor)) static void stop_compiler(void) {
    if (atomic_load(&compiler_run.parent) != (long)getpid()) return;
    rp__lock(&compiling);
    compiler_run.ended = true;
    if (compiler_run.group > 0) (void)kill(-compiler_run.group, SIGKILL);
    rp__unlock(&compiling);
}

static int limit_seconds(void) { return (int)rp__env_number("REPRISE_CC_SECONDS", COMPILE_LIMIT_S); }

/* The environment of a compiler: its temporaries lie in `folder` as well, where what is left of them goes with the folder. From
   rp__alloc; `variable` is a part of it. */
static char **environment_in(const char *folder, char variable[RP__DISK_PATH + 16]) {
    size_t n = 0, kept = 0;
    while (environ && environ[n]) n++;
    char **list = rp__alloc((n + 2) * sizeof *list);
    if (!list) return NULL;
    for (size_t k = 0; k < n; k++)
        if (strncmp(environ[k], "TMPDIR=", 7) != 0) list[kept++] = environ[k];
    (void)snprintf(variable, RP__DISK_PATH + 16, "TMPDIR=%s", folder);
    list[kept++] = variable;
    list[kept] = NULL;
    return list;
}

/* Runs argv in a folder of the disk cache; its output goes to the file `log` there. Returns 0; or, with why, 1 where it ran and failed,
   else -1. Where the program ignores SIGCHLD, or waits for every child itself, nobody learns how a compiler ended: that is 0, and what
   it wrote has to show it. */
static int run_command(char *const *argv, const char *folder, const char *log, char *why, size_t why_bytes) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    char variable[RP__DISK_PATH + 16], **environment = environment_in(folder, variable);
    pid_t pid = 0;
    snprintf(why, why_bytes, "out of memory");
    if (!environment || posix_spawn_file_actions_init(&actions)) {
        rp__free(environment);
        return -1;
    }
    if (posix_spawnattr_init(&attr)) {
        posix_spawn_file_actions_destroy(&actions);
        rp__free(environment);
        return -1;
    }
    sigset_t none, usual; /* a compiler waits for children of its own, and may end by a pipe */
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGCHLD);
    sigaddset(&usual, SIGPIPE);
    int e = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    if (!e) e = posix_spawnattr_setsigmask(&attr, &none);
    if (!e) e = posix_spawnattr_setsigdefault(&attr, &usual);
    if (!e) e = posix_spawnattr_setpgroup(&attr, 0);
    if (!e) e = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!e) e = posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (!e) e = posix_spawn_file_actions_adddup2(&actions, 1, 2);
    rp__lock(&compiling);
    atomic_store(&compiler_run.parent, (long)getpid()); /* before there is one: it may run before this thread goes on */
    if (!e) e = compiler_run.ended ? ECANCELED : posix_spawnp(&pid, argv[0], &actions, &attr, argv, environment);
    compiler_run.group = e ? 0 : pid;
    rp__unlock(&compiling);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    rp__free(environment);
    if (e) {
        snprintf(why, why_bytes, "no compiler '%s': %s", argv[0], strerror(e));
        return -1;
    }
#if defined(__linux__)
    (void)prlimit(pid, RLIMIT_FSIZE, &(struct rlimit){FILE_LIMIT, FILE_LIMIT}, NULL);
#endif
    const int seconds = limit_seconds();
    const double limit = now_ms() + seconds * 1e3;
    int status = 0;
    bool late = false;
    int fault = EINTR;
    while (fault == EINTR) { /* nothing known yet */
        rp__lock(&compiling);
        const pid_t got = waitpid(pid, &status, WNOHANG);
        fault = got == pid ? 0 : got < 0 ? errno : EINTR;
        if (fault != EINTR) compiler_run.group = 0;
        rp__unlock(&compiling);
        if (fault != EINTR) break;
        if (!late && now_ms() > limit) {
            late = true;
            kill(-pid, SIGKILL);
        }
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    if (late) {
        snprintf(why, why_bytes, "the compiler took longer than %d s", seconds);
        return -1;
    }
    if (fault == ECHILD) return 0;
    if (fault) {
        snprintf(why, why_bytes, "the compiler's exit was lost: %s", strerror(fault));
        return -1;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
    if (WIFSIGNALED(status)) {
        (void)kill(-pid, SIGKILL); /* what it had started */
        snprintf(why, why_bytes, "the compiler was killed by signal %d", WTERMSIG(status));
        return -1;
    }
    snprintf(why, why_bytes,
             WIFEXITED(status) && WEXITSTATUS(status) == 127 ? "no compiler '%s' (exit %d)"
                                                             : "'%s' failed with exit %d",
             argv[0], WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return WIFEXITED(status) && WEXITSTATUS(status) != 127 ? 1 : -1;
}
static const char *compiler(void) {
    const char *cc = rp__env("REPRISE_CC");
    return cc ? cc : "cc";
}
/* What the compiler calls itself, asked once: part of every key. Only the worker comes here. */
static const char *compiler_identity(void) {
    static char identity[512], name[256];
    if (identity[0] && !strcmp(name, compiler())) return identity;
    char folder[RP__DISK_PATH], path[RP__DISK_PATH + 16], why[128];
    char *argv[] = {strdup(compiler()), strdup("--version"), NULL}, *text = NULL;
    size_t n = 0, place = 0;
    if (argv[0] && argv[1] && rp__disk_work_folder(folder, &place, why, sizeof why)) {
        snprintf(path, sizeof path, "%s/work.version", folder);
        if (run_command(argv, folder, path, why, sizeof why) == 0) text = rp__disk_file_read(path, &n);
        rp__disk_work_end();
    }
    rp__lock(&loading);
    snprintf(name, sizeof name, "%s", compiler());
    snprintf(identity, sizeof identity, "%s %.200s", name, text ? text : "unknown");
    rp__unlock(&loading);
    rp__free(text);
    free(argv[0]);
    free(argv[1]);
    return identity;
}
/* Does the file hold every segment that its headers name? The loader would die of what is missing. */
static bool image_is_whole(const char *data, size_t n) {
#if defined(__linux__)
    ElfW(Ehdr) e;
    if (n < sizeof e) return false;
    memcpy(&e, data, sizeof e);
    if (memcmp(e.e_ident, ELFMAG, SELFMAG) != 0 || e.e_type != ET_DYN || e.e_phentsize != sizeof(ElfW(Phdr)) ||
        e.e_phoff > n || (n - e.e_phoff) / sizeof(ElfW(Phdr)) < e.e_phnum)
        return false;
    for (unsigned k = 0; k < e.e_phnum; k++) {
        ElfW(Phdr) p;
        memcpy(&p, data + e.e_phoff + k * sizeof p, sizeof p);
        if (p.p_offset > n || n - p.p_offset < p.p_filesz) return false;
    }
    return e.e_shoff == 0 || (e.e_shoff <= n && (n - e.e_shoff) / sizeof(ElfW(Shdr)) >= e.e_shnum);
#else
    return data && n > 0;
#endif
}

/* ---- one kernel ------------------------------------------------------------------------------------------------------ */

static const char *const isa_flags[][10] = {
    {"baseline", NULL},
    {"avx2", "-mavx2", "-mfma", "-mf16c", NULL},
    {"avx512", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c",
     "-mprefer-vector-width=512", NULL},
};
static const char *const common_flags[] = {
    "-std=gnu11", "-O2", "-w", "-shared", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", NULL};
/* Asked for beside them where a compiler fails: its own faults are in passes. gcc 12 dies of the removal of partial redundancies in
   some kernels of rows. The bits are the same. */
static const char fewer_passes[] = "-O1";

/* Of group.h: the primitives that a vector function computes. */
static const char math_lines[] =
#define RP_MATH1(prim, f, cost) "G_V1(" #f ")\n"
#define RP_MATH2(prim, f, cost) "G_V2(" #f ")\n"
#include "kernel/prims.def"
    ;

static void write_source(const rp__dag *dag, const rp__cpu_loop *loop, rp__program *const *grouped,
                         const rp__tiles *tiles, bool whole, rp__text *t) {
    rp__text_add(t, "/* loop kernel, %s */\n#define RP_VEC_BYTES %u\n", tiles->name, tiles->vec_bytes);
    if (whole) {
        rp__text_puts(t, "#define RP_PASTED 1\n");
        rp__text_puts(t, rp__embed_vec_h);
        rp__text_puts(t, rp__embed_vmath_h);
        rp__text_puts(t, rp__embed_group_h);
        rp__text_puts(t, math_lines);
        rp__text_puts(t, rp__embed_line_h);
    }
    for (int i = 0; i < RP__PLAN_COUNT; i++) {
        if (grouped[i]) rp__emit_c(dag, grouped[i], t);
        if (loop->programs[i] && rp__line_fits(dag, loop->programs[i])) rp__emit_line(dag, loop->programs[i], "rp_", t);
    }
}
static const rp__tiles *tiles_of(const rp__cpu_loop *loop) {
    for (int i = 0; i < RP__PLAN_COUNT; i++) {
        if (loop->programs[i]) return loop->programs[i]->tiles;
    }
    return NULL;
}
static bool make_grouped(const rp__dag *dag, const rp__cpu_loop *loop, rp__program **grouped) {
    for (int i = 0; i < RP__PLAN_COUNT; i++) {
        if (loop->programs[i] && !(grouped[i] = rp__program_new(dag, (rp__plan)i, loop->programs[i]->tiles, true)))
            return false;
    }
    return true;
}

/* The object of a source, compiled in `folder`: a file there, and its bytes. fault: what the folder, and not the compiler, failed with. */
static char *compile(const char *folder, const rp__text *text, const rp__tiles *tiles, char object[RP__DISK_PATH + 16],
                     size_t *bytes, int *fault, char *why, size_t why_bytes) {
    char source[RP__DISK_PATH + 16], log[RP__DISK_PATH + 16], *argv[32], *data = NULL;
    snprintf(source, sizeof source, "%s/work.c", folder);
    snprintf(object, sizeof source, "%s/work.so", folder);
    snprintf(log, sizeof log, "%s/work.log", folder);
    if (!rp__disk_file_write(source, text->data, text->length)) {
        *fault = errno;
        snprintf(why, why_bytes, "the source could not be written: %s", strerror(*fault));
        return NULL;
    }
    int n = 0;
    argv[n++] = strdup(compiler());
    for (int i = 0; common_flags[i]; i++) argv[n++] = strdup(common_flags[i]);
    for (size_t k = 0; k < sizeof isa_flags / sizeof *isa_flags; k++) {
        for (int i = 1; !strcmp(isa_flags[k][0], tiles->name) && isa_flags[k][i]; i++)
            argv[n++] = strdup(isa_flags[k][i]);
    }
    argv[n++] = strdup("-o");
    argv[n++] = strdup(object);
    argv[n++] = strdup(source);
    argv[n++] = strdup("-lm"); /* fma of the baseline: libm may be nobody else's */
    argv[n] = NULL;
    bool ok = true;
    for (int i = 0; i < n; i++) ok = ok && argv[i];
    if (!ok) snprintf(why, why_bytes, "out of memory");
    int result = ok ? run_command(argv, folder, log, why, why_bytes) : -1;
    if (result > 0 && !rp__disk_folder_fault(folder) && (argv[n] = strdup(fewer_passes))) {
        argv[++n] = NULL;
        result = run_command(argv, folder, log, why, why_bytes);
    }
    ok = result == 0;
    for (int i = 0; i < n; i++) free(argv[i]);
    if (!ok || access(object, F_OK) != 0) *fault = rp__disk_folder_fault(folder);
    if (ok) {
        (void)chmod(object, 0600); /* whatever the umask was */
        data = rp__disk_file_read(object, bytes);
        if (data && image_is_whole(data, *bytes)) return data;
        snprintf(why, why_bytes, "the object could not be loaded: the compiler wrote %s", data ? "none" : "nothing");
    } else if ((data = rp__disk_file_read(log, bytes)) && *bytes) { /* the compiler's first words */
        char line[128];
        size_t first = strcspn(data, "\n");
        snprintf(line, sizeof line, ": %.*s", first < 120 ? (int)first : 120, data);
        strncat(why, line, why_bytes - strlen(why) - 1);
    }
    rp__free(data);
    return NULL;
}
static bool bind_symbols(void *handle, rp__program *const *grouped) {
    for (int i = 0; i < RP__PLAN_COUNT; i++) {
        for (unsigned k = 0; grouped[i] && k < grouped[i]->n_groups; k++) {
            rp__group *g = &grouped[i]->groups[k];
            char name[32];
            union {
                void *p;
                rp__group_fn *f;
            } along, across;
            snprintf(name, sizeof name, "rp_a_%d_%u", i, k);
            along.p = across.p = dlsym(handle, name);
            if (g->n_reductions) {
                snprintf(name, sizeof name, "rp_x_%d_%u", i, k);
                across.p = dlsym(handle, name);
            }
            if (!along.p || !across.p) return false;
            g->along = along.f;
            g->across = across.f;
        }
    }
    return true;
}
static void bind_lines(void *handle, rp__cpu_loop *loop) {
    for (int i = 0; i < RP__PLAN_COUNT; i++) {
        char name[32];
        union {
            void *p;
            rp__line_fn *f;
        } line;
        snprintf(name, sizeof name, "rp_l_%d", i);
        line.p = loop->programs[i] ? dlsym(handle, name) : NULL;
        if (line.p) atomic_store_explicit(&loop->line[i], line.f, memory_order_release);
    }
    for (unsigned k = RP__CHUNK_PHASES; k-- > 0;) {
        char name[32];
        union {
            void *p;
            rp__line_fn *f;
        } chunk;
        snprintf(name, sizeof name, "rp_c_%u", k);
        chunk.p = dlsym(handle, name);
        if (chunk.p) atomic_store_explicit(&loop->chunk[k], chunk.f, memory_order_release);
    }
}
static void *load_object(const char *object, rp__program *const *grouped, char *why, size_t why_bytes) {
    rp__lock(&loading);
    void *handle = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    if (!handle || !bind_symbols(handle, grouped)) {
        const char *e = handle ? NULL : dlerror();
        snprintf(why, why_bytes, "the object could not be loaded: %s", e ? e : "a function is missing");
        if (handle) (void)dlclose(handle);
        handle = NULL;
    }
    rp__unlock(&loading);
    return handle;
}
/* Compiles, loads, and keeps. not_kept: why it is not in the cache; empty: it is to be. */
static void *make_object(const rp__text *text, const rp__tiles *tiles, rp__hash key, rp__program *const *grouped,
                         char *not_kept, size_t not_kept_bytes, char *why, size_t why_bytes) {
    char folder[RP__DISK_PATH], object[RP__DISK_PATH + 16];
    size_t bytes, place = 0;
    void *handle = NULL;
    int fault = 1;
    /* A folder that is full, or was taken away, is not the compiler's fault. */
    while (!handle && fault && rp__disk_work_folder(folder, &place, why, why_bytes)) {
        fault = 0;
        char *data = compile(folder, text, tiles, object, &bytes, &fault, why, why_bytes);
        if (data) handle = load_object(object, grouped, why, why_bytes); /* a mapping lives on */
        if (handle && !*not_kept) (void)rp__disk_cache_put(key, extension, data, bytes, not_kept, not_kept_bytes);
        rp__free(data);
        rp__disk_work_end();
    }
    return handle;
}
/* Source to loaded object. why: how it went, also on success. */
static bool build(const rp__dag *dag, rp__cpu_loop *loop, char *why, size_t why_bytes) {
    rp__program *grouped[RP__PLAN_COUNT] = {NULL};
    const rp__tiles *tiles = tiles_of(loop);
    rp__text text = {NULL, 0, 0, false};
    char object[RP__DISK_PATH], not_kept[256] = "";
    bool hit = false;
    void *handle = NULL;
    const double start = now_ms();
    if (!make_grouped(dag, loop, grouped)) {
        snprintf(why, why_bytes, "%s", rp_error_message());
        rp_error_take();
        goto done;
    }
    write_source(dag, loop, grouped, tiles, true, &text);
    if (text.failed) {
        snprintf(why, why_bytes, "out of memory");
        goto done;
    }
    const char *identity = compiler_identity();
    rp__hash key = rp__hash_bytes(identity, strlen(identity), rp__hash_none());
    for (int i = 0; common_flags[i]; i++) key = rp__hash_bytes(common_flags[i], strlen(common_flags[i]), key);
    key = rp__hash_bytes(tiles->name, strlen(tiles->name), key);
    key = rp__hash_bytes(text.data, text.length, key);
    if (rp__disk_cache_loads(not_kept, sizeof not_kept) && rp__disk_cache_file(key, extension, object)) {
        handle = load_object(object, grouped, why, why_bytes);
        hit = handle != NULL;
        if (!hit) rp__disk_cache_drop(key, extension);
    }
    if (!handle) handle = make_object(&text, tiles, key, grouped, not_kept, sizeof not_kept, why, why_bytes);
    if (handle)
        snprintf(why, why_bytes,
                 hit ? "native: %s, from the cache in %.0f ms%s%s" : "native: %s, compiled in %.0f ms%s%s", tiles->name,
                 now_ms() - start, *not_kept && !hit ? ", not kept: " : "", hit ? "" : not_kept);
done:
    rp__text_free(&text);
    if (handle) {
        loop->jit->handle = handle;
        memcpy(loop->grouped, grouped, sizeof grouped);
        bind_lines(handle, loop);
    } else {
        for (int i = 0; i < RP__PLAN_COUNT; i++) rp__program_release(grouped[i]);
    }
    rp__lock(&queue.lock);
    if (!handle)
        queue.counters.failed++;
    else if (hit)
        queue.counters.cached++;
    else
        queue.counters.compiled++;
    queue.counters.compile_ms += now_ms() - start;
    rp__unlock(&queue.lock);
    return handle != NULL;
}

static void run_job(job *j) {
    rp__cpu_loop *loop = j->kernel->payload;
    char why[sizeof loop->jit->reason - 16];
    why[0] = 0;
    bool ok = build(j->dag, loop, why, sizeof why);
    snprintf(loop->jit->reason, sizeof loop->jit->reason, "%s%s", ok ? "" : "interpreted: ", why);
    /* The programs are in place before the entry that reads them. */
    if (ok) atomic_store_explicit(&j->kernel->cpu, rp__run_native, memory_order_release);
    if (rp__log_on(RP__LOG_KERNEL)) rp__log(RP__LOG_KERNEL, "%s", loop->jit->reason);
    rp__lock(&queue.lock);
    atomic_store_explicit(&loop->jit->state, ok ? READY : FAILED, memory_order_release);
    queue.counters.pending--;
    queue.current = NULL;
    pthread_cond_broadcast(&queue.changed);
    rp__unlock(&queue.lock);
    rp__kernel_release(j->kernel);
    rp__dag_release(j->dag);
    rp__free(j);
}
static void *work(void *unused) {
    (void)unused;
    for (;;) {
        rp__lock(&queue.lock);
        job *j = queue.current = queue.first;
        if (j) {
            queue.first = j->next;
        } else {
            queue.running = false;
            pthread_cond_broadcast(&queue.changed);
        }
        rp__unlock(&queue.lock);
        if (!j) return NULL;
        run_job(j);
    }
}

/* A child has no worker. What was queued, or being compiled, waits there for the child's own. */
static void after_fork(void) {
    static const pthread_cond_t fresh = PTHREAD_COND_INITIALIZER;
    queue.changed = fresh;
    queue.running = false;
    compiler_run.group = 0; /* the parent's */
    if (!queue.current) return;
    queue.current->next = queue.first;
    if (!queue.first) queue.last = queue.current;
    queue.first = queue.current;
    queue.current = NULL;
}
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static void watch_fork(void) { rp__fork_handler_add(after_fork); }

/* Under the lock: there is a worker when there is work, unless no thread can be had. */
static bool start_worker(void) {
    pthread_t thread;
    sigset_t all, old;
    if (queue.running || !queue.first) return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the program's threads */
    queue.running = pthread_create(&thread, NULL, work, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (queue.running) pthread_detach(thread);
    return queue.running;
}

static void enqueue(rp__dag *dag, rp__kernel *kernel) {
    rp__cpu_loop *loop = kernel->payload;
    (void)pthread_once(&fork_once, watch_fork);
    job *j = rp__calloc(1, sizeof *j);
    int cold = COLD;
    if (!j || !atomic_compare_exchange_strong(&loop->jit->state, &cold, QUEUED)) {
        rp__free(j);
        return;
    }
    j->dag = rp__dag_retain(dag);
    j->kernel = rp__kernel_retain(kernel);
    rp__lock(&queue.lock);
    if (queue.first)
        queue.last->next = j;
    else
        queue.first = j;
    queue.last = j;
    queue.counters.pending++;
    job *dropped = NULL;
    if (!start_worker()) { /* no thread: interpreted for good */
        dropped = queue.first;
        queue.first = queue.last = NULL;
        for (job *at = dropped; at; at = at->next) {
            struct rp__jit_state *s = ((rp__cpu_loop *)at->kernel->payload)->jit;
            queue.counters.pending--;
            queue.counters.failed++;
            snprintf(s->reason, sizeof s->reason, "interpreted: no thread for the compiler");
            atomic_store(&s->state, FAILED);
        }
    }
    rp__unlock(&queue.lock);
    while (dropped) {
        job *next = dropped->next;
        rp__kernel_release(dropped->kernel);
        rp__dag_release(dropped->dag);
        rp__free(dropped);
        dropped = next;
    }
}
static void wait_for(rp__cpu_loop *loop) {
    rp__lock(&queue.lock);
    (void)start_worker(); /* of a child that was forked while it was queued */
    while (atomic_load(&loop->jit->state) == QUEUED && queue.running) {
        pthread_cond_wait(&queue.changed, &queue.lock);
    }
    rp__unlock(&queue.lock);
}

/* ---- interface -------------------------------------------------------------------------------------------------------- */

rp_status rp__jit_begin(rp__cpu_loop *loop) {
    loop->jit = rp__calloc(1, sizeof *loop->jit);
    return loop->jit ? RP_OK : RP_ERROR_OUT_OF_MEMORY;
}
void rp__jit_forget(rp__cpu_loop *loop) {
    if (!loop->jit) return;
    if (loop->jit->handle) dlclose(loop->jit->handle);
    rp__free(loop->jit);
    loop->jit = NULL;
}
void rp__jit_count(rp__dag *dag, rp__kernel *kernel, int64_t elements) {
    rp__cpu_loop *loop = kernel->payload;
    struct rp__jit_state *s = loop->jit;
    if (RP__LIKELY(atomic_load_explicit(&s->state, memory_order_relaxed) != COLD)) return;
    const mode m = mode_of();
    if (m == MODE_OFF) return;
    if (m == MODE_WAIT) {
        enqueue(dag, kernel);
        wait_for(loop);
        return;
    }
    /* Counts may be lost between threads: it is a heuristic, and a locked add would cost more than the rest of a tiny bind. */
    uint64_t launches = atomic_load_explicit(&s->launches, memory_order_relaxed) + 1;
    uint64_t sum = atomic_load_explicit(&s->elements, memory_order_relaxed) + (uint64_t)elements;
    atomic_store_explicit(&s->launches, launches, memory_order_relaxed);
    atomic_store_explicit(&s->elements, sum, memory_order_relaxed);
    if (RP__UNLIKELY(launches >= HOT_LAUNCHES && sum >= HOT_ELEMENTS)) enqueue(dag, kernel);
}
bool rp__jit_may(const rp__cpu_loop *loop) {
    return mode_of() != MODE_OFF && atomic_load_explicit(&loop->jit->state, memory_order_relaxed) != FAILED;
}
bool rp__jit_request(rp__dag *dag, bool wait) {
    rp__kernel *k = rp__cpu_kernel(dag);
    if (!k) return false;
    rp__cpu_loop *loop = k->payload;
    if (mode_of() == MODE_OFF) return false;
    enqueue(dag, k);
    if (wait) wait_for(loop);
    return atomic_load(&loop->jit->state) == READY;
}
const char *rp__jit_reason(const rp__dag *dag) {
    const rp__kernel *k = rp__cpu_kernel_made(dag);
    if (!k) return "interpreted: not launched yet";
    const rp__cpu_loop *loop = k->payload;
    switch (atomic_load_explicit(&loop->jit->state, memory_order_acquire)) {
    case READY:
    case FAILED: return loop->jit->reason;
    case QUEUED: return "interpreted: native code is being compiled";
    default: break;
    }
    for (int i = 0; i < RP__PLAN_COUNT; i++) {
        if (atomic_load_explicit(&loop->line[i], memory_order_relaxed)) return "native: part of the library";
    }
    const rp__program *rows = loop->programs[RP__PLAN_RECOMPUTE];
    if (rows && rows->largest.phase) return "interpreted: a search that needs no compiler";
    if (mode_of() != MODE_OFF) return "interpreted: not hot yet";
    const char *cc = rp__env("REPRISE_CC");
    if (rp__env_ignored()) return "interpreted: the program has rights that whoever started it may not have";
    return cc && !strcmp(cc, "none") ? "interpreted: REPRISE_CC=none" : "interpreted: REPRISE_JIT=0";
}
const char *rp__jit_fault(const rp__dag *dag) {
    const rp__kernel *k = rp__cpu_kernel_made(dag);
    const rp__cpu_loop *loop = k ? k->payload : NULL;
    return loop && atomic_load_explicit(&loop->jit->state, memory_order_acquire) == FAILED ? loop->jit->reason : NULL;
}
void rp__jit_counters_get(rp__jit_counters *out) {
    rp__lock(&queue.lock);
    *out = queue.counters;
    rp__unlock(&queue.lock);
}
void rp__jit_drain(void) {
    rp__lock(&queue.lock);
    (void)start_worker();
    while (queue.running) pthread_cond_wait(&queue.changed, &queue.lock);
    rp__unlock(&queue.lock);
}
rp_status rp__jit_source(const rp__dag *dag, const rp__kernel *kernel, rp__text *out) {
    const rp__cpu_loop *loop = kernel->payload;
    rp__program *grouped[RP__PLAN_COUNT] = {NULL};
    rp_status status = RP_OK;
    if (make_grouped(dag, loop, grouped))
        write_source(dag, loop, grouped, tiles_of(loop), false, out);
    else
        status = rp_error_status();
    for (int i = 0; i < RP__PLAN_COUNT; i++) rp__program_release(grouped[i]);
    return status;
}
