/* Kernels compiled by several threads, and what a kept cubin depends on, on the emulator: one compilation a text, texts side by
   side, no wait for a text of another thread's, versions of the compiler told apart. Cases that need a process of their own
   are children of this one.
   ctest: labels=cuda,threads timeout=300 cost=20 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <reprise.h>

#include "cudasim/cudasim.h"
#include "device/cuda/libnvrtc.h"
#include "kernel/cuda/nvrtc.h"
#include "support/cuda.h"
#include "support/trace_help.h"

static const char *program; /* of this process */
static char folder[] = "/tmp/reprise-cuda-compiler-XXXXXX";

static rp_status ask(unsigned n, const char *body, rp__kernel **out) {
    char name[64], source[256];
    (void)snprintf(name, sizeof name, "compiler_%s_%u", getenv("COMPILER_TEST_MARK"), n);
    (void)snprintf(source, sizeof source, "extern \"C\" __global__ void %s(rp_u32 *p) {\n    %s\n}\n", name, body);
    return rp__nvrtc_kernel(rp__device_get(rp_cuda(0)), source, name, RP__KERNEL_CUDA, out);
}

/* A child of this program with a cache of its own, or one that it is given. 0: well. */
static int child(const char *what, const char *cache, const char *variable, const char *value) {
    char *const arguments[] = {(char *)(uintptr_t)program, (char *)(uintptr_t)what, NULL};
    char *before = variable && getenv(variable) ? strdup(getenv(variable)) : NULL;
    pid_t pid;
    (void)setenv("REPRISE_CACHE_DIR", cache, 1);
    if (variable) (void)setenv(variable, value, 1);
    int status = posix_spawn(&pid, program, NULL, NULL, arguments, environ);
    if (variable && before) (void)setenv(variable, before, 1);
    if (variable && !before) (void)unsetenv(variable);
    free(before);
    if (status != 0 || waitpid(pid, &status, 0) != pid) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *cache(const char *name) {
    static char path[200];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    (void)mkdir(path, 0700);
    return path;
}

/* ---- threads */

enum { THREADS = 4 };
typedef struct job {
    pthread_barrier_t *start;
    unsigned number;
    const char *body;
    rp__kernel *kernel;
    rp_status status;
} job;

static void *run_job(void *arg) {
    job *j = arg;
    pthread_barrier_wait(j->start);
    j->status = ask(j->number, j->body, &j->kernel);
    return NULL;
}

static void run_jobs(job *jobs) {
    pthread_barrier_t start;
    pthread_t threads[THREADS];
    pthread_barrier_init(&start, NULL, THREADS);
    for (unsigned k = 0; k < THREADS; k++) {
        jobs[k].start = &start;
        if (pthread_create(&threads[k], NULL, run_job, &jobs[k])) _exit(98);
    }
    for (unsigned k = 0; k < THREADS; k++) pthread_join(threads[k], NULL);
    pthread_barrier_destroy(&start);
}

static unsigned most_at_once(void) {
    void *library = dlopen(getenv("REPRISE_LIBNVRTC"), RTLD_NOW);
    unsigned (*compiling)(void) = NULL;
    if (library) *(void **)&compiling = dlsym(library, "cudasim_compiling");
    return compiling ? compiling() : 0;
}

/* Four texts by four threads: the emulator holds each until all are being compiled. */
static int texts_side_by_side(void) {
    job jobs[THREADS];
    for (unsigned k = 0; k < THREADS; k++) jobs[k] = (job){.number = k, .body = "*p = 1;"};
    run_jobs(jobs);
    for (unsigned k = 0; k < THREADS; k++)
        if (jobs[k].status != RP_OK) return 1;
    if (rp__nvrtc_statistics().compiled != THREADS) return 2;
    return most_at_once() == THREADS ? 0 : 3;
}

static int one_text(void) {
    job jobs[THREADS];
    for (unsigned k = 0; k < THREADS; k++) jobs[k] = (job){.number = 7, .body = "*p = 2;"};
    run_jobs(jobs);
    for (unsigned k = 0; k < THREADS; k++)
        if (jobs[k].status != RP_OK || jobs[k].kernel != jobs[0].kernel) return 1;
    return rp__nvrtc_statistics().compiled == 1 ? 0 : 2;
}

/* Who waits for a compilation that fails tries it again, and is told why by itself. */
static int wrong_text(void) {
    job jobs[THREADS];
    for (unsigned k = 0; k < THREADS; k++) jobs[k] = (job){.number = 8, .body = "*p = no_such_thing;"};
    run_jobs(jobs);
    for (unsigned k = 0; k < THREADS; k++)
        if (jobs[k].status != RP_ERROR_COMPILE) return 1;
    return 0;
}

/* ---- whole functions: loops and products of one shape, first compiled by all threads at once */

static void layer(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_softmax(rp_tanh(rp_matmul(rp_sin(in[0]), rp_cos(in[0]))), -1);
}

static void *run_function(void *arg) {
    rp_status *status = arg;
    (void)rp_set_default_device(rp_cuda(0));
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = rp_compile((rp_fn){layer, NULL, 0, "layer"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    rp_tensor *x = filled(0.2, 2, 6, 6), *y;
    for (int k = 0; k < 3 && *status == RP_OK; k++) *status = rp_call(f, &x, 1, &y, 1);
    if (*status != RP_OK) printf("%s\n", rp_error_message());
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    return NULL;
}

static int functions(void) {
    pthread_t threads[THREADS];
    rp_status status[THREADS] = {RP_OK};
    for (unsigned k = 0; k < THREADS; k++)
        if (pthread_create(&threads[k], NULL, run_function, &status[k])) return 98;
    for (unsigned k = 0; k < THREADS; k++) pthread_join(threads[k], NULL);
    for (unsigned k = 0; k < THREADS; k++)
        if (status[k] != RP_OK) return 1;
    if (rp_synchronize(rp_cuda(0)) != RP_OK) return 3; /* not while a thread captures */
    uint64_t compiled = rp__nvrtc_statistics().compiled;
    rp_status alone = RP_OK; /* finds all of it */
    (void)run_function(&alone);
    return alone == RP_OK && rp__nvrtc_statistics().compiled == compiled ? 0 : 2;
}

static void test_threads(void **state) {
    (void)state;
    assert_int_equal(child("side-by-side", cache("a"), "CUDASIM_MEET", "4"), 0);
    assert_int_equal(child("one-text", cache("b"), NULL, NULL), 0);
    assert_int_equal(child("wrong-text", cache("c"), NULL, NULL), 0);
    assert_int_equal(child("functions", cache("d"), NULL, NULL), 0);
}

/* ---- what is kept */

static bool is_loaded(void) {
    char text[2000];
    (void)rp__libnvrtc_report(text, sizeof text);
    return strstr(text, "not looked for yet") == NULL;
}

static int compiles(void) {
    rp__kernel *k;
    if (ask(9, "*p = 3;", &k) != RP_OK) return 1;
    return rp__nvrtc_statistics().compiled == 1 && rp__nvrtc_statistics().from_disk == 0 ? 0 : 2;
}

static int finds(void) {
    rp__kernel *k;
    if (ask(9, "*p = 3;", &k) != RP_OK) return 1;
    if (rp__nvrtc_statistics().compiled != 0 || rp__nvrtc_statistics().from_disk != 1) return 2;
    return is_loaded() ? 3 : 0;
}

/* A process with another compiler (here: the same under another name, which says another version) must not take what the
   first one made, although it has not loaded its own yet; back with the first, neither. */
static void test_version(void **state) {
    (void)state;
    char other[300], command[800], found[340];
    (void)snprintf(other, sizeof other, "%s/other", folder);
    (void)mkdir(other, 0700);
    (void)snprintf(command, sizeof command, "cp '%s' '%s/libnvrtc.so.13'", getenv("REPRISE_LIBNVRTC"), other);
    assert_int_equal(system(command), 0);
    (void)snprintf(found, sizeof found, "%s/libnvrtc.so.13", other);
    char *kept = strdup(cache("kept")), *first = strdup(getenv("REPRISE_LIBNVRTC"));
    assert_int_equal(child("compiles", kept, NULL, NULL), 0);
    assert_int_equal(child("finds", kept, NULL, NULL), 0);
    (void)setenv("CUDASIM_NVRTC_VERSION", "other", 1);
    assert_int_equal(child("compiles", kept, "REPRISE_LIBNVRTC", found), 0);
    assert_int_equal(child("finds", kept, "REPRISE_LIBNVRTC", found), 0);
    (void)unsetenv("CUDASIM_NVRTC_VERSION");
    assert_int_equal(child("compiles", kept, "REPRISE_LIBNVRTC", first), 0);
    /* the file is replaced where it lies */
    assert_int_equal(child("finds", kept, NULL, NULL), 0);
    (void)setenv("CUDASIM_NVRTC_VERSION", "third", 1);
    (void)snprintf(command, sizeof command, "touch -d 2001-02-03 '%s'", found);
    assert_int_equal(system(command), 0);
    assert_int_equal(child("compiles", kept, "REPRISE_LIBNVRTC", found), 0);
    (void)unsetenv("CUDASIM_NVRTC_VERSION");
    free(kept);
    free(first);
}

/* ---- a GPU that is not here */

static rp_compiled *layer_on_cuda(void) {
    (void)rp_set_default_device(rp_cuda(0));
    return rp_compile((rp_fn){layer, NULL, 0, "layer"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
}

/* Compiles and plays back, computes nothing, and says so where somebody asks for a result. */
static int warms(void) {
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = layer_on_cuda();
    rp_tensor *x = filled(0.2, 2, 6, 6), *other = filled(0.3, 2, 6, 6), *y = NULL;
    float values[36];
    for (int k = 0; k < 4; k++)
        if (rp_call(f, k % 2 ? &x : &other, 1, &y, 1) != RP_OK) return printf("%s\n", rp_error_message()) > 0;
    if (rp__nvrtc_statistics().compiled == 0) return 2;
    if (rp_to_host(y, values, sizeof values) == RP_OK) return 3;
    if (!strstr(rp_error_message(), "REPRISE_CUDA_OFFLINE")) return 4;
    (void)rp_error_take();
    rp_compiled_release(f);
    (void)rp_scope_end(scope, NULL, 0);
    return 0;
}

/* Everything is there: eager kernels, fused ones, the product. */
static int uses(void) {
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = layer_on_cuda();
    rp_tensor *x = filled(0.2, 2, 6, 6), *y[2];
    int wrong = 0;
    for (int k = 0; k < 3 && !wrong; k++) wrong = rp_call(f, &x, 1, &y[0], 1) != RP_OK ? 1 : 0;
    if (!wrong && rp__nvrtc_statistics().compiled != 0) wrong = 2;
    if (!wrong && rp__nvrtc_statistics().from_disk == 0) wrong = 3;
    if (!wrong) {
        layer(NULL, &x, 1, &y[1], 1);
        if (!rp_item_i64(rp_equal(y[0], y[1]))) wrong = 4;
    }
    rp_compiled_release(f);
    (void)rp_scope_end(scope, NULL, 0);
    return wrong;
}

static void test_a_gpu_that_is_not_here(void **state) {
    (void)state;
    const rp__device *d = rp__device_get(rp_cuda(0));
    char *warmed = strdup(cache("warmed")), like[40], other[40];
    assert_non_null(d);
    (void)snprintf(like, sizeof like, "sm_%d:%d", d->arch, d->multiprocessors);
    (void)snprintf(other, sizeof other, "sm_%d", d->arch >= 80 ? 75 : 80);
    assert_int_equal(child("warms", warmed, "REPRISE_CUDA_OFFLINE", other), 0);
    assert_int_equal(child("uses", warmed, NULL, NULL), 2); /* that was for another one; now they are compiled */
    char *again = strdup(cache("warmed-again"));
    assert_int_equal(child("warms", again, "REPRISE_CUDA_OFFLINE", like), 0);
    assert_int_equal(child("uses", again, NULL, NULL), 0);
    free(warmed);
    free(again);
}

static int run_child(const char *what) {
    static const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {{"side-by-side", texts_side_by_side},
                 {"one-text", one_text},
                 {"wrong-text", wrong_text},
                 {"functions", functions},
                 {"compiles", compiles},
                 {"finds", finds},
                 {"warms", warms},
                 {"uses", uses}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        if (strcmp(cases[k].name, what) == 0) return cases[k].run();
    return 97;
}

int main(int argc, char **argv) {
    if (test_cuda_is_real()) {
        printf("skipped: the emulator's compiler is asked what it does\n");
        return 0;
    }
    if (argc > 1) return run_child(argv[1]);
    if (!test_cuda_choose() || !mkdtemp(folder)) return 1;
    char mark[32], command[200];
    (void)snprintf(mark, sizeof mark, "%u", (unsigned)getpid());
    (void)setenv("COMPILER_TEST_MARK", mark, 1);
    program = argv[0];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads), cmocka_unit_test(test_version),
                                       cmocka_unit_test(test_a_gpu_that_is_not_here)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command) != 0 || failed;
}
