/* Tier 1: what is compiled, cached, compiled again, or given up with a reason; results never depend on it.
   ctest: labels=threads timeout=300 cost=13 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <reprise.h>

#include "kernel/cpu/jit.h"
#include "kernel/disk_cache.h"
#include "support/loops.h"
#include "support/many_locks.h"

static test_device device;
static char folder[256];

/* x * k + k: a DAG of its own for each k. */
static rp__dag *line(double k) {
    rp__dag_builder *b = rp__dag_new();
    rp__val c = rp__dag_const(b, RP_F32, test_f(k));
    store_new(b, RP_F32, op2(b, RP__ADD, op2(b, RP__MUL, load_new(b, RP_F32, false), c), c), false);
    return rp__dag_finish(b);
}
static void check(rp__dag *dag, float k) {
    enum { N = 333 };
    float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)i;
    rp__space_access a[2] = {{.base = x, .stride = {1}}, {.base = y, .stride = {1}}};
    rp__space s = {.dims = {1}, .extent = {N}, .n_accesses = 2, .accesses = a};
    test_run(&device, dag, &s, NULL);
    for (int i = 0; i < N; i++) assert_true(y[i] == (float)i * k + k);
}
static rp__jit_counters counters(void) {
    rp__jit_counters c;
    rp__jit_counters_get(&c);
    return c;
}
static bool have_compiler(void) { return system("cc --version >/dev/null 2>&1") == 0; }
/* A fresh cache and the usual compiler. */
static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "%s", "loop-jit-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    setenv("REPRISE_CACHE_DIR", folder, 1);
    unsetenv("REPRISE_CC");
    unsetenv("REPRISE_CACHE_MB");
    return 0;
}
/* Path of the only object in the cache. */
static int objects(char *path, size_t bytes) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, bytes, "%s/%s", folder, e->d_name);
        n++;
    }
    if (d) closedir(d);
    return n;
}
static int tear_down(void **state) {
    (void)state;
    char path[600];
    rp__jit_drain();
    while (objects(path, sizeof path)) unlink(path);
    rmdir(folder);
    return 0;
}

static void compiled_then_cached_then_repaired(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    rp__jit_counters before = counters();
    rp__dag *dag = line(3);
    assert_true(rp__jit_request(dag, true));
    assert_int_equal(counters().compiled, before.compiled + 1);
    assert_non_null(strstr(rp__jit_reason(dag), "native: "));
    check(dag, 3);
    rp__dag_release(dag);
    rp__jit_drain();
    char path[600];
    assert_int_equal(objects(path, sizeof path), 1); /* no source, no log, no temporary */
    dag = line(3);
    assert_true(rp__jit_request(dag, true));
    assert_int_equal(counters().cached, before.cached + 1);
    check(dag, 3);
    rp__dag_release(dag);
    rp__jit_drain();
    /* A byte in the middle changes: never loaded. */
    int fd = open(path, O_RDWR);
    char byte;
    assert_int_equal(pread(fd, &byte, 1, 4096), 1);
    byte = (char)~byte;
    assert_int_equal(pwrite(fd, &byte, 1, 4096), 1);
    close(fd);
    dag = line(3);
    assert_true(rp__jit_request(dag, true));
    assert_int_equal(counters().compiled, before.compiled + 2);
    check(dag, 3);
    rp__dag_release(dag);
    rp__jit_drain();
    assert_int_equal(truncate(path, 100), 0);
    dag = line(3);
    assert_true(rp__jit_request(dag, true));
    assert_int_equal(counters().compiled, before.compiled + 3);
    check(dag, 3);
    rp__dag_release(dag);
}
/* Rows of 48 elements go along where a line function can run them, be it that it is compiled later: a recorded walk stays. A scan has none. */
static rp__dag *short_rows(double k, bool scans) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, RP_F32, false), c = rp__dag_const(b, RP_F32, test_f(k));
    rp__val all =
        scans ? rp__dag_scan(b, RP__SCAN_SUM, x, RP__ALONG_ROW) : rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW);
    store_new(b, RP_F32, op2(b, RP__ADD, op2(b, RP__MUL, all, x), c), false);
    return rp__dag_finish(b);
}
static void walks(rp__dag *dag, const char *want) {
    enum { ROWS = 64, R = 48 };
    static float x[ROWS * R], y[ROWS * R];
    rp__space_access a[2] = {{.base = x, .stride = {R, 1}}, {.base = y, .stride = {R, 1}}};
    rp__space s = {.dims = {1, 1}, .extent = {ROWS, R}, .n_accesses = 2, .accesses = a};
    rp__text t = {0};
    rp__cpu_loops.schedule_text(&device.device, dag, &s, &t);
    assert_non_null(t.data);
    assert_memory_equal(t.data, want, strlen(want));
    rp__text_free(&t);
}
static void short_rows_go_along(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    rp__dag *dag = short_rows(5, false), *scan = short_rows(5, true);
    walks(dag, "rows along");
    assert_true(rp__jit_request(dag, true));
    walks(dag, "rows along");
    walks(scan, "rows across");
    rp__dag_release(dag);
    rp__dag_release(scan);
    setenv("REPRISE_CC", "no-such-compiler", 1);
    dag = short_rows(6, false);
    assert_false(rp__jit_request(dag, true));
    walks(dag, "rows across");
    rp__dag_release(dag);
}

static void gives_up(const char *cc, double k, const char *reason) {
    setenv("REPRISE_CC", cc, 1);
    uint64_t failed = counters().failed;
    rp__dag *dag = line(k);
    assert_false(rp__jit_request(dag, true));
    assert_int_equal(counters().failed, failed + 1);
    if (!strstr(rp__jit_reason(dag), reason)) fail_msg("'%s' does not say '%s'", rp__jit_reason(dag), reason);
    check(dag, (float)k);
    assert_false(rp_failed());
    rp__dag_release(dag);
}
static void squared_wave(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(rp_sin(rp_add_scalar(in[0], rp_f64(0.375))), rp_cos(in[0]));
}
/* Entries of explain of kernels that could not be compiled; the last one's message. */
static int told_of_faults(rp_compiled *f, const char **message) {
    int n = 0;
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, i, &e), RP_OK);
        if (strcmp(e.kind, "kernel") != 0 || strcmp(e.reason, "not-compiled") != 0) continue;
        *message = e.message;
        n++;
    }
    return n;
}
/* A compiled function says of which kernel the compiler failed, and how. */
static void explain_tells(const char *cc, const char *reason) {
    setenv("REPRISE_CC", cc, 1);
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = rp_compile((rp_fn){squared_wave, NULL, 0, "wave"}, RP_OPTIONS(rp_compile_options, .wait = true));
    rp_tensor *x = rp_arange(rp_f64(0), rp_f64(10), rp_f64(0.01)), *y, *want;
    const char *message = NULL;
    assert_int_equal(told_of_faults(f, &message), 0);
    for (int k = 0; k < 3; k++) assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    squared_wave(NULL, &x, 1, &want, 1);
    assert_memory_equal(rp_data(y), rp_data(want), 4000);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(told_of_faults(f, &message), 1);
        if (!strstr(message, reason) || !strstr(message, "add_scalar")) fail_msg("%s", message);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}
static void script(const char *name, const char *text) {
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(name, 0700);
}
static void compilers_that_do_not_work(void **state) {
    (void)state;
    gives_up("/nonexistent/compiler", 5, "interpreted: no compiler '/nonexistent/compiler'");
    gives_up("/bin/false", 6, "failed with exit 1");
    script("./killed-cc", "#!/bin/sh\nkill -9 $$\n");
    gives_up("./killed-cc", 7, "killed by signal 9");
    script("./bad-cc", "#!/bin/sh\necho 'something is wrong'\nexit 3\n");
    gives_up("./bad-cc", 8, "something is wrong");
    explain_tells("./bad-cc", "something is wrong");
    script("./lying-cc",
           "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = -o ] && echo nonsense >\"$2\"; shift; done\nexit 0\n");
    gives_up("./lying-cc", 9, "could not be loaded");
    unlink("./killed-cc");
    unlink("./bad-cc");
    unlink("./lying-cc");
}

/* A compiler that dies of what it does at the usual level is asked for less. */
static void compilers_with_faults(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    script("./faulty-cc",
           "#!/bin/sh\ncase \"$*\" in\n*--version*|*-O2*-O1) exec cc \"$@\";;\nesac\necho 'a pass died' >&2\nexit 4\n");
    setenv("REPRISE_CC", "./faulty-cc", 1);
    const rp__jit_counters before = counters();
    rp__dag *dag = line(11);
    assert_true(rp__jit_request(dag, true));
    assert_int_equal(counters().compiled, before.compiled + 1);
    assert_int_equal(counters().failed, before.failed);
    check(dag, 11);
    rp__dag_release(dag);
    unsetenv("REPRISE_CC");
    unlink("./faulty-cc");
}
/* Compilers that are to be ended hold a pipe open, whose end shows that all of their processes are gone. */
static const char alive_name[] = "./jit-alive";
static int alive_begin(void) {
    unlink(alive_name);
    assert_int_equal(mkfifo(alive_name, 0600), 0);
    const int fd = open(alive_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}
static void alive_end(int fd) {
    char word[16];
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
    while (read(fd, word, sizeof word) > 0) {}
    close(fd);
    unlink(alive_name);
}

/* A compiler that never ends, one whose output ends early, one that writes without end. */
static void compilers_that_misbehave(void **state) {
    (void)state;
    script("./slow-cc", "#!/bin/sh\nexec 9<>./jit-alive\nsleep 1000000 &\nsleep 1000000\n");
    const int alive = alive_begin();
    setenv("REPRISE_CC_SECONDS", "1", 1);
    gives_up("./slow-cc", 31, "took longer than 1 s");
    unsetenv("REPRISE_CC_SECONDS");
    alive_end(alive);
    unlink("./slow-cc");
    script("./endless-cc",
           "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n"
           "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && exec dd if=/dev/zero of=\"$2\" bs=1M count=1000; shift; done\n");
    gives_up("./endless-cc", 32, "");
    unlink("./endless-cc");
    char path[600];
    assert_int_equal(objects(path, sizeof path), 0); /* nothing is left of them */
    if (!have_compiler()) return;
    script("./torn-cc", "#!/bin/sh\ncc \"$@\" || exit 1\n"
                        "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && o=$2; shift; done\n"
                        "[ -z \"$o\" ] || { head -c 5000 \"$o\" >\"$o.x\" && mv \"$o.x\" \"$o\"; }\n");
    gives_up("./torn-cc", 33, "could not be loaded");
    unlink("./torn-cc");
    script("./empty-cc", "#!/bin/sh\necho 'int x;' | cc -shared -fPIC -x c - -o /dev/null\n"
                         "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && echo 'int x;' | cc -shared -fPIC -x c - -o \"$2\"; "
                         "shift; done\nexit 0\n");
    gives_up("./empty-cc", 34, "a function is missing");
    unlink("./empty-cc");
    assert_int_equal(objects(path, sizeof path), 0);
}

/* How a request got its object: 'c' from the cache, 'n' newly compiled, 'p' compiled and not kept. */
static char how_of(rp__dag *dag, float k) {
    rp__jit_counters before = counters();
    if (!rp__jit_request(dag, true)) fail_msg("%s", rp__jit_reason(dag));
    if (k != 0) check(dag, k);
    bool kept = !strstr(rp__jit_reason(dag), "not kept");
    rp__dag_release(dag);
    rp__jit_drain();
    return counters().cached > before.cached ? 'c' : kept ? 'n' : 'p';
}
static char how(float k) { return how_of(line(k), k); }
/* What the library's own calls find out about a folder, for folders that this machine has not: "" none. */
static char full_folder[300], noexec_folder[300], exec_folder[300]; /* the last: all but this are noexec */
ssize_t write(int fd, const void *data, size_t bytes) {
    char link[64], path[600];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = *full_folder ? readlink(link, path, sizeof path - 1) : 0;
    path[n > 0 ? n : 0] = 0;
    if (n > 0 && strstr(path, full_folder)) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_write, fd, data, bytes);
}
int statvfs(const char *restrict path, struct statvfs *restrict out) {
    memset(out, 0, sizeof *out);
    if (*noexec_folder && strstr(path, noexec_folder)) out->f_flag = ST_NOEXEC;
    if (*exec_folder && !strstr(path, exec_folder)) out->f_flag = ST_NOEXEC;
    return 0;
}

/* x * x: other source than any line's (constants are not part of it). */
static rp__dag *square(void) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, RP_F32, false);
    store_new(b, RP_F32, op2(b, RP__MUL, x, x), false);
    return rp__dag_finish(b);
}
static void put(const char *path, const void *data, size_t bytes) {
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
    close(fd);
}
static void entries_that_are_not_to_be_trusted(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    char path[600], other[700], noise[9000];
    assert_int_equal(how(41), 'n');
    assert_int_equal(objects(path, sizeof path), 1);
    assert_int_equal(how(41), 'c');
    put(path, "", 0);
    assert_int_equal(how(41), 'n');
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)(i * 2654435761u >> 13);
    put(path, noise, sizeof noise);
    assert_int_equal(how(41), 'n');
    /* a sound object of another kernel */
    snprintf(other, sizeof other, "%s-kept", path);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(how_of(square(), 0), 'n');
    char second[600] = "";
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.' && !strstr(e->d_name, "-kept"))
            snprintf(second, sizeof second, "%s/%s", folder, e->d_name);
    closedir(d);
    assert_int_equal(rename(second, path), 0);
    assert_int_equal(how(41), 'n');
    /* a link, a pipe, a folder in its place */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(strrchr(other, '/') + 1, path), 0);
    assert_int_equal(how(41), 'n');
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(how(41), 'n');
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(how(41), 'p');
    assert_int_equal(rmdir(path), 0);
    /* files and folders that others may write, or that are theirs */
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(how(41), 'c');
    assert_int_equal(chmod(path, 0620), 0);
    assert_int_equal(how(41), 'n');
    assert_int_equal(how(41), 'c');
    assert_int_equal(chmod(folder, 0770), 0);
    assert_int_equal(how(41), 'p');
    assert_int_equal(chmod(folder, 0702), 0);
    assert_int_equal(how(41), 'p');
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(how(41), 'c');
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_int_equal(how(41), 'n');
        assert_int_equal(chown(folder, 12345, 12345), 0);
        assert_int_equal(how(41), 'p');
        assert_int_equal(chown(folder, 0, 0), 0);
    } else { /* it can be read only */
        assert_int_equal(chmod(folder, 0500), 0);
        assert_int_equal(how(43), 'p');
        assert_int_equal(chmod(folder, 0700), 0);
    }
    assert_int_equal(how(41), 'c');
}

/* An entry that is what it says and does not load is made anew. */
static void sound_entries_that_do_not_load(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    char path[600], data[512];
    assert_int_equal(how(51), 'n');
    assert_int_equal(objects(path, sizeof path), 1);
    rp__hash key = {0, 0}, probe = {0x0123456789abcdef, 0xfedcba9876543210};
    char hex[33], digits[17];
    rp__hash_text(probe, hex); /* which half comes first */
    const char *name = strrchr(path, '/') + 1;
    uint64_t half[2];
    for (int i = 0; i < 2; i++) {
        memcpy(digits, name + 16 * i, 16);
        digits[16] = 0;
        half[i] = strtoull(digits, NULL, 16);
    }
    uint64_t *first = memcmp(hex, "0123456789abcdef", 16) == 0 ? (uint64_t *)&key : (uint64_t *)&key + 1;
    first[0] = half[0];
    ((uint64_t *)&key)[first == (uint64_t *)&key] = half[1];
    rp__hash_text(key, hex);
    assert_memory_equal(hex, name, 32);
    memset(data, 'x', sizeof data);
    char why[256];
    assert_true(rp__disk_cache_put(key, "so", data, sizeof data, why, sizeof why));
    assert_string_equal(why, "");
    assert_int_equal(objects(path, sizeof path), 1);
    assert_int_equal(how(51), 'n');
    assert_int_equal(how(51), 'c');
}

/* What dlopen keeps of an error for a thread is freed as the thread ends, after LeakSanitizer has forgotten the thread: a process that ends
   in between leaks nothing. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:_dlerror_run\n"; }

/* Processes that compile one kernel at once. */
static void many_processes(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    enum { N = 4 };
    pid_t pid[N];
    for (int i = 0; i < N; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            setenv("REPRISE_JIT", "wait", 1);
            execl("/proc/self/exe", "test_loop_jit", "native: ", (char *)NULL);
            _exit(99);
        }
    }
    for (int i = 0; i < N; i++) {
        int status = -1;
        waitpid(pid[i], &status, 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    char path[600];
    assert_int_equal(objects(path, sizeof path), 1);
}

static void cache_that_cannot_be_written(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    setenv("REPRISE_CACHE_DIR", "/proc/nothing/here", 1);
    rp__dag *dag = line(11);
    assert_true(rp__jit_request(dag, true));
    assert_non_null(strstr(rp__jit_reason(dag), "not kept"));
    check(dag, 11);
    rp__dag_release(dag);
}
/* Says of one kernel: compiled, here for the first time and not kept, for this reason. */
static void not_kept(float k, const char *reason) {
    rp__dag *dag = line(k);
    if (!rp__jit_request(dag, true)) fail_msg("%s", rp__jit_reason(dag));
    const char *not_kept = strstr(rp__jit_reason(dag), "not kept");
    if (!not_kept || !strstr(not_kept, reason)) fail_msg("'%s' does not say '%s'", rp__jit_reason(dag), reason);
    check(dag, k);
    rp__dag_release(dag);
    rp__jit_drain();
}
static void no_room_in_the_cache(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    char path[600];
    snprintf(full_folder, sizeof full_folder, "%s", folder);
    not_kept(71, strerror(ENOSPC)); /* compiled, and then there is no room for it */
    assert_int_equal(objects(path, sizeof path), 0);
    /* No room where compilers work: elsewhere, and kept. */
    char tmp[300];
    snprintf(tmp, sizeof tmp, "%s/%.200s-tmp", getcwd(path, 90), folder);
    assert_int_equal(mkdir(tmp, 0700), 0);
    setenv("TMPDIR", tmp, 1);
    snprintf(full_folder, sizeof full_folder, "%s", tmp); /* the source does not fit */
    assert_int_equal(how(72), 'n');
    full_folder[0] = 0;
    /* The source fits and the object does not; the compiler says so in a language of its own. */
    script("./full-cc",
           "#!/bin/sh\ncase \"$*\" in\n*loop-jit-*) echo 'disque plein' >&2; exit 1;;\nesac\nexec cc \"$@\"\n");
    gives_up("./full-cc", 73, "disque plein");                      /* there is room: then it is the compiler */
    snprintf(full_folder, sizeof full_folder, "%s", "/work.probe"); /* no room for more than the source */
    assert_int_equal(how(74), 'n');
    full_folder[0] = 0;
    unlink("./full-cc");
    unsetenv("REPRISE_CC");
    assert_int_equal(rmdir(tmp), 0);
    /* No temporary folder at all: the cache, where the entry alone stays. */
    unsetenv("TMPDIR");
    snprintf(exec_folder, sizeof exec_folder, "%s", folder);
    assert_int_equal(how_of(square(), 0), 'n');
    exec_folder[0] = 0;
    assert_int_equal(objects(path, sizeof path), 3); /* lines are one kernel, of two compilers */
}
static void folders_of_unusual_names_and_mounts(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    const char *const names[] = {"-o", "-shared", "a b;c", "$ORIGIN", "with$LIB"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char own[300], path[700], inside[256];
        snprintf(inside, sizeof inside, "%s", folder);
        if (names[i][0] == '-') {
            snprintf(own, sizeof own, "%s", names[i]);
        } else {
            snprintf(own, sizeof own, "%s/%s", folder, names[i]);
        }
        setenv("REPRISE_CACHE_DIR", own, 1);
        if (strchr(names[i], '$')) {
            not_kept(81, "replaces names after a $");
        } else {
            assert_int_equal(how(81), 'n');
            assert_int_equal(how(81), 'c');
        }
        snprintf(folder, sizeof folder, "%.250s", own);
        assert_int_equal(objects(path, sizeof path), strchr(names[i], '$') ? 0 : 1);
        while (objects(path, sizeof path)) unlink(path);
        assert_int_equal(rmdir(folder), 0);
        snprintf(folder, sizeof folder, "%s", inside);
    }
    setenv("REPRISE_CACHE_DIR", folder, 1);
    snprintf(noexec_folder, sizeof noexec_folder, "%s", folder);
    not_kept(82, "mounted noexec");
    snprintf(noexec_folder, sizeof noexec_folder, "/"); /* and nowhere else either */
    unsetenv("REPRISE_CC");
    gives_up("cc", 83, "no folder for objects");
    noexec_folder[0] = 0;
    assert_int_equal(how(84), 'n');
}
/* A daemon ignores SIGCHLD, and a supervisor reaps every child: how a compiler ended is lost, what it wrote is not. */
static void children_that_nobody_waits_for(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    assert_true(before != SIG_ERR);
    assert_int_equal(how(91), 'n');
    assert_int_equal(how(91), 'c');
    script("./waiting-cc", "#!/bin/sh\n(exit 3) & wait $! ; [ $? = 3 ] || exit 9\nexec cc \"$@\"\n");
    setenv("REPRISE_CC", "./waiting-cc", 1); /* waits for a child itself */
    assert_int_equal(how(92), 'n');
    unlink("./waiting-cc");
    script("./failing-cc", "#!/bin/sh\necho 'no such thing'\nexit 3\n");
    gives_up("./failing-cc", 93, "the compiler wrote nothing");
    unlink("./failing-cc");
    signal(SIGCHLD, before);
}
static void what_killed_processes_left(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    static const char *const names[] = {"0123456789abcdef0123456789abcdef.so.1.2.3.tmp",
                                        "0123456789abcdef0123456789abcdef.cubin.1.2.3.tmp"};
    enum { N = sizeof names / sizeof *names };
    char path[600];
    for (int young = 0; young < 2; young++) {
        for (int i = 0; i < N; i++) {
            snprintf(path, sizeof path, "%s/%s", folder, names[i]);
            int fd = open(path, O_WRONLY | O_CREAT, 0600);
            struct timespec when[2] = {{time(NULL) - (young ? 3600 : 90000), 0},
                                       {time(NULL) - (young ? 3600 : 90000), 0}};
            assert_int_equal(futimens(fd, when), 0);
            close(fd);
        }
        assert_int_equal(how_of(young ? square() : line(13), 0), 'n');
        assert_int_equal(objects(path, sizeof path), young ? 2 + N : 1); /* others may be at work on the young */
    }
    /* The same for folders of processes that keep nothing. */
    char parent[300], left[400];
    snprintf(parent, sizeof parent, "%s/%s-tmp", getcwd(path, sizeof path - 50), folder);
    assert_int_equal(mkdir(parent, 0700), 0);
    snprintf(left, sizeof left, "%s/reprise-work-aB3dE6", parent);
    assert_int_equal(mkdir(left, 0700), 0);
    snprintf(path, sizeof path, "%s/work.so", left);
    put(path, "x", 1);
    const int lock = open(left, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(lock, LOCK_EX), 0); /* somebody is at work there */
    setenv("TMPDIR", parent, 1);
    setenv("REPRISE_CACHE_DIR", "/proc/nothing/here", 1);
    assert_int_equal(how(14), 'p');
    assert_int_equal(access(path, F_OK), 0);
    close(lock);
    assert_int_equal(how(15), 'p');
    unsetenv("TMPDIR");
    assert_int_equal(rmdir(parent), 0);
}
/* A process that ends while a compiler works for it takes folder and compiler along; so much as the folder goes with the next
   one's work where it was killed. */
static void ends_at_work(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    script("./stuck-cc", "#!/bin/sh\nexec 9<>./jit-alive\n"
                         "[ \"$1\" = --version ] && [ \"$STUCK\" != version ] && exit 0\n"
                         "echo x >\"$TMPDIR/cc-temporary.s\"\necho at work >&9\n"
                         "while [ -e ./stuck-cc ]; do sleep 0.1; done\n");
    char parent[300], path[600], word[16];
    snprintf(parent, sizeof parent, "%s/%s-tmp", getcwd(path, sizeof path - 50), folder);
    assert_int_equal(mkdir(parent, 0700), 0);
    setenv("TMPDIR", parent, 1);
    for (int way = 0; way < 3; way++) { /* 0: while asked who it is, 1: while compiling, 2: killed */
        const int alive = alive_begin();
        int go[2];
        assert_int_equal(pipe(go), 0);
        const pid_t pid = fork();
        if (pid == 0) {
            dup2(go[0], 0);
            close(go[0]);
            close(go[1]);
            setenv("REPRISE_CC", "./stuck-cc", 1);
            setenv("STUCK", way == 0 ? "version" : "", 1);
            execl("/proc/self/exe", "test_loop_jit", "ends at work", (char *)NULL);
            _exit(99);
        }
        close(go[0]);
        struct pollfd p = {.fd = alive, .events = POLLIN};
        do assert_true(poll(&p, 1, -1) >= 0);
        while (read(alive, word, sizeof word) <= 0);
        assert_int_equal(strncmp(word, "at work", 7), 0);
        if (way == 2) assert_int_equal(kill(pid, SIGKILL), 0);
        close(go[1]);
        int status = -1;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(way == 2 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
        if (way == 2) {
            assert_int_not_equal(rmdir(parent), 0); /* nobody was there to tidy up */
            setenv("REPRISE_CACHE_DIR", "/proc/nothing/here", 1);
            assert_int_equal(how(16), 'p');
            unlink("./stuck-cc"); /* which lets the compiler end */
        }
        alive_end(alive);
        assert_int_equal(rmdir(parent), 0);
        assert_int_equal(mkdir(parent, 0700), 0);
    }
    unsetenv("TMPDIR");
    assert_int_equal(rmdir(parent), 0);
}
static void cache_is_bounded(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    for (int i = 0; i < 3; i++) {
        char path[600];
        snprintf(path, sizeof path, i == 1 ? "%s/%032d.cubin" : "%s/%032d.so", folder, i); /* one bound for all */
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        assert_int_equal(ftruncate(fd, 700000), 0);
        struct timespec old[2] = {{1000 + i, 0}, {1000 + i, 0}};
        futimens(fd, old);
        close(fd);
    }
    setenv("REPRISE_CACHE_MB", "1", 1);
    rp__dag *dag = line(12);
    assert_true(rp__jit_request(dag, true));
    rp__dag_release(dag);
    char path[600];
    snprintf(path, sizeof path, "%s/%032d.so", folder, 0);
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/%032d.cubin", folder, 1);
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/%032d.so", folder, 2);
    assert_int_equal(access(path, F_OK), 0);
}
/* Environment that is read once needs a process of its own. */
static int child(const char *name, const char *value, const char *word) {
    pid_t pid = fork();
    if (pid == 0) {
        setenv(name, value, 1);
        execl("/proc/self/exe", "test_loop_jit", word, (char *)NULL);
        _exit(99);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
static void switches(void **state) {
    (void)state;
    assert_int_equal(child("REPRISE_JIT", "0", "interpreted: REPRISE_JIT=0"), 0);
    assert_int_equal(child("REPRISE_CC", "none", "interpreted: REPRISE_CC=none"), 0);
    assert_int_equal(child("REPRISE_JIT", "1", "interpreted: not hot yet"), 0);
    if (have_compiler()) assert_int_equal(child("REPRISE_JIT", "wait", "native: "), 0);
}

static void scaled_sine(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rp_sin(rp_mul_scalar(in[0], rp_f64(*(const double *)ctx)));
}
static uint64_t native(void) { return counters().compiled + counters().cached; } /* scalars are arguments: one kernel */
static void call(rp_compiled *f, rp_tensor *x) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *out = NULL;
    assert_int_equal(rp_call(f, &x, 1, &out, 1), RP_OK);
    rp_scope_end(scope, NULL, 0);
}
/* Replays bind nothing, so programs count them: kernels of one that moves much memory are compiled after some replays, or at
   once where a call is to wait for it. */
static void kernels_of_programs(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    double k[2] = {1.5, 2.5};
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_ones(RP_DIMS(1 << 20));
    uint64_t before = native();
    for (int wait = 0; wait < 2; wait++) {
        const rp_fn fn = {scaled_sine, &k[wait], sizeof k[wait], "scaled sine"};
        rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .fullgraph = true, .wait = wait == 1));
        for (int i = 0; i < 4; i++) call(f, x);
        if (!wait) {
            rp__jit_drain();
            assert_int_equal(native(), before);
            for (int i = 0; i < 40; i++) call(f, x);
            rp__jit_drain();
        }
        assert_int_equal(counters().pending, 0);
        assert_true(native() > before);
        before = native();
        rp_compiled_release(f);
    }
    rp_scope_end(scope, NULL, 0);
}

int main(int argc, char **argv) {
    test_device_init(&device);
    if (argc > 1 && !strcmp(argv[1], "ends at work")) {
        rp__dag *dag = line(22);
        char end;
        (void)rp__jit_request(dag, false);
        return (int)read(0, &end, 1); /* until the other end is closed */
    }
    if (argc > 1) {
        rp__dag *dag = line(21);
        check(dag, 21);
        int bad = strncmp(rp__jit_reason(dag), argv[1], strlen(argv[1])) != 0;
        if (bad) fprintf(stderr, "%s\n", rp__jit_reason(dag));
        rp__dag_release(dag);
        return bad;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(compiled_then_cached_then_repaired, set_up, tear_down),
        cmocka_unit_test_setup_teardown(short_rows_go_along, set_up, tear_down),
        cmocka_unit_test_setup_teardown(compilers_that_do_not_work, set_up, tear_down),
        cmocka_unit_test_setup_teardown(compilers_with_faults, set_up, tear_down),
        cmocka_unit_test_setup_teardown(compilers_that_misbehave, set_up, tear_down),
        cmocka_unit_test_setup_teardown(entries_that_are_not_to_be_trusted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sound_entries_that_do_not_load, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_processes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(cache_that_cannot_be_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_room_in_the_cache, set_up, tear_down),
        cmocka_unit_test_setup_teardown(folders_of_unusual_names_and_mounts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(children_that_nobody_waits_for, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_killed_processes_left, set_up, tear_down),
        cmocka_unit_test_setup_teardown(ends_at_work, set_up, tear_down),
        cmocka_unit_test_setup_teardown(cache_is_bounded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(switches, set_up, tear_down),
        cmocka_unit_test_setup_teardown(kernels_of_programs, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
