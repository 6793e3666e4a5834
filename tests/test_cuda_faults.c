/* Driver failures on the emulator: the n-th driver call fails, for all n, over opening the device, eager ops, copies, a
   capture with its replays and a training step. Each failure is a status and a message, leaks nothing, and is over: the same
   work then succeeds. Further: no driver, no NVRTC with and without compiled kernels on disk, a context that died.
   Cases that need a process in which nothing was opened yet are children of this one.
   ctest: labels=cuda timeout=600 cost=20 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "cudasim/cudasim.h"
#include "support/cuda.h"

/* CUresult */
enum { OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, SYSTEM_NOT_READY = 802, UNKNOWN = 999 };

static struct {
    void (*fail_after)(unsigned long long, int);
    void (*counters)(cudasim_counters *);
} sim;

static bool find_emulator(void) {
    void *library = dlopen(getenv("REPRISE_LIBCUDA"), RTLD_NOW);
    if (!library) return false;
    *(void **)&sim.fail_after = dlsym(library, "cudasim_fail_after");
    *(void **)&sim.counters = dlsym(library, "cudasim_get_counters");
    return sim.fail_after && sim.counters;
}

static cudasim_counters counters(void) {
    cudasim_counters c;
    memset(&c, 0, sizeof c);
    sim.counters(&c);
    return c;
}

/* ---- work ---- */

typedef struct outcome {
    float values[32];
    int n;
} outcome;

static bool keep(outcome *o, rp_tensor *t) {
    size_t n = rp_is_error(t) ? 0 : (size_t)rp_numel(t);
    if (n == 0 || o->n + (int)n > 32) return false;
    if (rp_to_host(t, o->values + o->n, n * sizeof(float)) != RP_OK) return false;
    o->n += (int)n;
    return true;
}

static bool eager_ops(outcome *o) {
    const float v[] = {0.5f, -1, 2, 0.25f, 3, -2}, w[] = {1, 2, -1, 0.5f, 0.25f, -3};
    rp_tensor *x = rp_from_data(v, RP_DIMS(2, 3), RP_F32), *y = rp_from_data(w, RP_DIMS(2, 3), RP_F32);
    rp_tensor *h = rp_softmax(rp_add(rp_sin(x), y, RP_OPTIONS(rp_add_options, .alpha = rp_f64(2))), 1);
    rp_add_(h, x);
    return keep(o, h) && keep(o, rp_linear(h, y, NULL)) && keep(o, rp_sum(h, RP_DIMS(0)));
}

static bool topk_and_streams(outcome *o) {
    const float v[] = {0.5f, -1, 2, 0.25f, 3, -2};
    rp_tensor *x = rp_from_data(v, RP_DIMS(6), RP_F32), *values;
    rp_stream *s = rp_stream_new(rp_cuda(0)), *before = rp_current_stream(rp_cuda(0));
    rp_event *e = rp_event_new(rp_cuda(0), false);
    bool done =
        rp_event_record(e, before) == RP_OK && rp_stream_wait_event(s, e) == RP_OK && rp_set_current_stream(s) == RP_OK;
    if (done) {
        values = rp_topk(x, 2, 0, true, true, NULL);
        done = keep(o, values);
        (void)rp_set_current_stream(before);
    }
    rp_event_release(e);
    rp_stream_release(s);
    return done;
}

static bool capture_and_replay(outcome *o) {
    const float v[] = {0.5f, -1, 2, 0.25f}, moved[] = {1, 2, 3, 4};
    rp_tensor *x = rp_from_data(v, RP_DIMS(4), RP_F32), *other = rp_from_data(moved, RP_DIMS(4), RP_F32), *y;
    rp_graph *g = rp_graph_new();
    (void)rp_manual_seed(3);
    bool done = rp_graph_begin(g, rp_cuda(0), NULL) == RP_OK;
    if (done) {
        y = rp_dropout(rp_exp(x), 0.5, true);
        done = rp_graph_end(g) == RP_OK && rp_graph_replay(g) == RP_OK && keep(o, y);
        done = done && rp_graph_repoint(g, x, other) == RP_OK && rp_graph_replay(g) == RP_OK && keep(o, y);
    }
    rp_graph_release(g);
    return done;
}

static bool training_step(outcome *o) {
    const float v[] = {0.5f, -1, 2, 0.25f, 3, -2};
    rp_tensor *x = rp_from_data(v, RP_DIMS(2, 3), RP_F32), *w = rp_from_data(v, RP_DIMS(2, 3), RP_F32);
    if (rp_set_requires_grad(w, true) != RP_OK) return false;
    rp_optimizer *adam = rp_adam(&w, 1, 0.1, NULL);
    bool done = !rp_failed();
    for (int step = 0; done && step < 2; step++) {
        rp_tensor *loss = rp_mean(rp_tanh(rp_linear(x, w, NULL)));
        done = rp_optimizer_zero_grad(adam, true) == RP_OK && rp_backward(loss, NULL, NULL) == RP_OK &&
               rp_optimizer_step(adam) == RP_OK;
    }
    done = done && keep(o, rp_detach(w));
    rp_optimizer_release(adam);
    (void)rp_set_grad(w, NULL);
    return done;
}

static void fused_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_softmax(rp_mul(rp_sin(in[0]), in[0]), 0);
}

/* Traced, compiled, recorded as a device graph, replayed, with a gradient; all of it given back. */
static bool compile_and_call(outcome *o) {
    const float v[] = {0.5f, -1, 2, 0.25f};
    rp_compiled *f = rp_compile((rp_fn){fused_body, NULL, 0, "fused_body"}, NULL);
    bool done = !rp_failed();
    for (int call = 0; done && call < 3; call++) {
        rp_tensor *x = rp_from_data(v, RP_DIMS(4), RP_F32), *y = NULL, *g = NULL;
        done = rp_set_requires_grad(x, true) == RP_OK && rp_call(f, &x, 1, &y, 1) == RP_OK && keep(o, y);
        if (!done) break;
        rp_tensor *loss = rp_sum(rp_mul(y, y));
        done = rp_grad(&loss, 1, &x, 1, NULL, NULL, &g) == RP_OK && keep(o, g);
    }
    rp_compiled_release(f);
    return done;
}

static const struct {
    const char *name;
    bool (*run)(outcome *o);
} works[] = {{"eager ops", eager_ops},
             {"streams", topk_and_streams},
             {"capture and replay", capture_and_replay},
             {"training step", training_step},
             {"compile and call", compile_and_call}};
enum { WORKS = sizeof works / sizeof *works };

/* A compiled function, made before: its calls launch one graph. */
static bool compiled(void *ctx, outcome *o) {
    const float v[] = {0.5f, -1, 2, 0.25f};
    rp_tensor *x = rp_from_data(v, RP_DIMS(4), RP_F32), *y = NULL;
    return rp_call(ctx, &x, 1, &y, 1) == RP_OK && keep(o, y);
}

/* One piece of work in a scope of its own. False: a sticky error is set. */
static bool attempt(int which, rp_compiled *f, outcome *o) {
    rp_scope s = rp_scope_begin();
    o->n = 0;
    bool done = which < WORKS ? works[which].run(o) : compiled(f, o);
    (void)rp_scope_end(s, NULL, 0);
    return done && !rp_failed();
}

static cudasim_counters level(void) {
    (void)rp_synchronize(rp_cuda(0));
    (void)rp_empty_cache(rp_cuda(0));
    return counters();
}

static bool same_level(const cudasim_counters *a, const cudasim_counters *b) {
    return a->live_allocations == b->live_allocations && a->live_pinned == b->live_pinned &&
           a->live_physical == b->live_physical && a->live_reservations == b->live_reservations &&
           a->live_streams == b->live_streams && a->live_events == b->live_events && a->live_graphs == b->live_graphs &&
           a->live_execs == b->live_execs && a->device_bytes == b->device_bytes;
}

static void sweep(int which, int code) {
    const char *name = which < WORKS ? works[which].name : "compiled function";
    outcome want, got;
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    rp_compiled *f = rp_compile((rp_fn){fused_body, NULL, 0, "fused_body"}, NULL);
    for (int warm = 0; warm < 4; warm++)
        if (!attempt(which, f, &want)) fail_msg("%s: %s", name, rp_error_message());
    unsigned failures = 0;
    cudasim_counters before = level();
    for (unsigned long long n = 1;; n++) {
        assert_true(n < 5000);
        unsigned long long calls = counters().calls;
        sim.fail_after(n, code);
        bool done = attempt(which, f, &got);
        sim.fail_after(0, 0);
        bool reached = counters().calls - calls >= n;
        if (done && rp_failed()) fail_msg("%s, call %llu: an error beside success", name, n);
        if (!done) {
            failures++;
            rp_status status = rp_error_status();
            const char *text = rp_error_message();
            rp_status wanted = code == OUT_OF_MEMORY ? RP_ERROR_OUT_OF_MEMORY : RP_ERROR_DRIVER;
            /* what a capture makes of it is the capture's status */
            if ((status != wanted && status != RP_ERROR_CAPTURE) || !strstr(text, "cu"))
                fail_msg("%s, call %llu: %s: '%s'", name, n, rp_status_name(status), text);
            assert_int_equal(rp_error_take(), status);
        } else if (memcmp(got.values, want.values, (size_t)want.n * sizeof *want.values) != 0) {
            fail_msg("%s, call %llu: failed silently: other values", name, n);
        }
        cudasim_counters after = level();
        if (rp_failed()) fail_msg("%s, call %llu: afterwards %s", name, n, rp_error_message());
        if (!same_level(&after, &before))
            fail_msg("%s, call %llu: left behind: %d allocations, %d pinned, %d physical, %d reservations, %d streams, "
                     "%d events, %d graphs, %d executables, %lld bytes",
                     name, n, (int)(after.live_allocations - before.live_allocations),
                     (int)(after.live_pinned - before.live_pinned), (int)(after.live_physical - before.live_physical),
                     (int)(after.live_reservations - before.live_reservations),
                     (int)(after.live_streams - before.live_streams), (int)(after.live_events - before.live_events),
                     (int)(after.live_graphs - before.live_graphs), (int)(after.live_execs - before.live_execs),
                     (long long)(after.device_bytes - before.device_bytes));
        if (!attempt(which, f, &got)) fail_msg("%s, after failing call %llu: %s", name, n, rp_error_message());
        if (got.n != want.n || memcmp(got.values, want.values, (size_t)want.n * sizeof *want.values) != 0)
            fail_msg("%s, after failing call %llu: other values", name, n);
        if (!reached) break;
    }
    assert_true(failures > 3);
    rp_compiled_release(f);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

static void test_eager(void **state) {
    (void)state;
    sweep(0, OUT_OF_MEMORY);
    sweep(0, UNKNOWN);
}
static void test_streams(void **state) {
    (void)state;
    sweep(1, UNKNOWN);
}
static void test_capture(void **state) {
    (void)state;
    sweep(2, OUT_OF_MEMORY);
    sweep(2, UNKNOWN);
}
static void test_training(void **state) {
    (void)state;
    sweep(3, OUT_OF_MEMORY);
}
static void test_compile(void **state) {
    (void)state;
    sweep(4, UNKNOWN);
    sweep(4, OUT_OF_MEMORY);
}
static void test_compiled(void **state) {
    (void)state;
    sweep(WORKS, UNKNOWN);
}

/* ---- in processes of their own ---- */

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: ", __LINE__);                                                                             \
            printf(__VA_ARGS__);                                                                                       \
            printf(" [%s]\n", rp_error_message());                                                                     \
            (void)fflush(stdout);                                                                                      \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Runs body(n) in a child that inherits nothing opened; its exit status. */
static int in_child(void (*body)(unsigned long long), unsigned long long n) {
    int status = 0;
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        body(n);
        exit(0); /* with everything that runs at exit */
    }
    if (child < 0 || waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

enum { NOT_REACHED = 42 };

/* Opening and first use: kernels are compiled (or read from the disk) and loaded. */
static void open_failing(unsigned long long n) {
    outcome o;
    sim.fail_after(n, SYSTEM_NOT_READY);
    bool there = rp_device_available(rp_cuda(0));
    bool done = there && rp_set_default_device(rp_cuda(0)) == RP_OK && attempt(0, NULL, &o);
    bool reached = counters().calls >= n;
    sim.fail_after(0, 0);
    if (!there) { /* no driver to speak of, now or later */
        CHECK(rp_set_default_device(rp_cuda(0)) != RP_OK || !attempt(0, NULL, &o), "no device, and yet it works");
        CHECK(strlen(rp_error_message()) > 10 && strstr(rp_error_message(), "CUDA"), "no reason given");
    } else if (!done) {
        CHECK(strstr(rp_error_message(), "cu"), "no driver call named");
    }
    (void)rp_error_take();
    if (there) {
        CHECK(rp_set_default_device(rp_cuda(0)) == RP_OK && attempt(0, NULL, &o), "after failing call %llu", n);
    }
    CHECK(rp_set_default_device(rp_cpu()) == RP_OK && attempt(0, NULL, &o), "the CPU, after failing call %llu", n);
    if (!reached) exit(NOT_REACHED);
}

static void test_open(void **state) {
    (void)state;
    int status = 0;
    unsigned long long n = 1;
    for (; n < 2000 && status == 0; n++) status = in_child(open_failing, n);
    if (status != NOT_REACHED) fail_msg("failing call %llu while opening: status %d", n - 1, status);
    assert_true(n > 10);
}

static void no_driver(unsigned long long n) {
    (void)n;
    (void)setenv("REPRISE_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
    CHECK(!rp_device_available(rp_cuda(0)), "there is a device");
    CHECK(!rp_failed(), "asking is no error");
    CHECK(rp_device_count(RP_DEVICE_CUDA) == 0, "devices without a driver");
    CHECK(rp_set_default_device(rp_cuda(0)) != RP_OK, "a device without a driver");
    CHECK(strstr(rp_error_message(), "libcuda"), "the text does not say what is missing");
    (void)rp_error_take();
    CHECK(rp_is_error(rp_from_blob(&n, (const int64_t[]){1}, 1, NULL, RP_F32, rp_cuda(0), NULL, NULL)) || rp_failed(),
          "a blob");
    (void)rp_error_take();
    outcome o;
    CHECK(attempt(0, NULL, &o), "the CPU");
}

static void test_no_driver(void **state) {
    (void)state;
    assert_int_equal(in_child(no_driver, 0), 0);
}

static char cache[64];

static void use_cuda(unsigned long long without_nvrtc) {
    outcome o;
    (void)setenv("REPRISE_CACHE_DIR", cache, 1);
    if (without_nvrtc) (void)setenv("REPRISE_LIBNVRTC", "/nonexistent/libnvrtc.so", 1);
    CHECK(rp_set_default_device(rp_cuda(0)) == RP_OK, "no device");
    CHECK(attempt(0, NULL, &o), "the work");
}

static void need_nvrtc(unsigned long long n) {
    outcome o;
    (void)n;
    (void)setenv("REPRISE_CACHE_DIR", cache, 1);
    (void)setenv("REPRISE_LIBNVRTC", "/nonexistent/libnvrtc.so", 1);
    CHECK(rp_set_default_device(rp_cuda(0)) == RP_OK, "no device");
    CHECK(!attempt(0, NULL, &o), "kernels without a compiler");
    CHECK(rp_error_status() == RP_ERROR_UNAVAILABLE && strstr(rp_error_message(), "nvrtc"), "another error");
    (void)rp_error_take();
    CHECK(rp_set_default_device(rp_cpu()) == RP_OK && attempt(0, NULL, &o), "the CPU");
}

static void remove_cache(void) {
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf ./%s", cache);
    if (system(command) != 0) fail_msg("%s", command);
}

static void test_no_nvrtc(void **state) {
    (void)state;
    (void)snprintf(cache, sizeof cache, "cuda-faults-XXXXXX");
    assert_non_null(mkdtemp(cache));
    assert_int_equal(in_child(need_nvrtc, 0), 0); /* nothing compiled yet */
    assert_int_equal(in_child(use_cuda, 0), 0);   /* fills the cache */
    assert_int_equal(in_child(use_cuda, 1), 0);   /* lives on it */
    remove_cache();
}

/* The context dies: final for the device, and for nothing else. */
static void lost(unsigned long long n) {
    outcome o;
    CHECK(rp_set_default_device(rp_cuda(0)) == RP_OK && attempt(0, NULL, &o), "the work");
    rp_tensor *held = rp_ones(RP_DIMS(4));
    unsigned long long calls = counters().calls;
    sim.fail_after(n, ILLEGAL_ADDRESS);
    bool done = attempt(0, NULL, &o);
    bool reached = counters().calls - calls >= n;
    sim.fail_after(0, 0);
    if (!done) {
        CHECK(rp_error_status() == RP_ERROR_DEVICE_LOST && strstr(rp_error_message(), "cu"), "call %llu", n);
        (void)rp_error_take();
        CHECK(!attempt(0, NULL, &o) && rp_error_status() == RP_ERROR_DEVICE_LOST, "a lost device works");
        (void)rp_error_take();
        CHECK(rp_synchronize(rp_cuda(0)) == RP_ERROR_DEVICE_LOST, "a lost device waits");
        (void)rp_error_take();
    }
    rp_release(rp_retain(held));
    CHECK(rp_set_default_device(rp_cpu()) == RP_OK && attempt(0, NULL, &o), "the CPU");
    if (!reached) exit(NOT_REACHED);
}

static void test_lost(void **state) {
    (void)state;
    int status = 0;
    unsigned long long n = 1;
    for (; n < 200 && status == 0; n++) status = in_child(lost, n);
    if (status != NOT_REACHED) fail_msg("failing call %llu: status %d", n - 1, status);
    assert_true(n > 3);
}

static int start(void **state) {
    (void)state;
    (void)rp_error_take();
    (void)rp_set_default_device(rp_cpu());
    return 0;
}

#define TEST(f) cmocka_unit_test_setup(f, start)
int main(void) {
    if (test_cuda_is_real()) {
        printf("driver failures are made by the emulator only\n");
        return 0;
    }
    if (!test_cuda_choose() || !find_emulator()) return 1;
    const struct CMUnitTest tests[] = {
        /* children first: nothing is open yet */
        TEST(test_open),    TEST(test_no_driver), TEST(test_no_nvrtc), TEST(test_lost),    TEST(test_eager),
        TEST(test_streams), TEST(test_capture),   TEST(test_training), TEST(test_compile), TEST(test_compiled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
