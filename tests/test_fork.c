/* Children of fork: the library works there on the CPU whatever its threads, and other threads of the program, were doing in the
   parent at that moment; CUDA that the parent has used gives a clear error. */
/* ctest: labels=cuda timeout=300 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <reprise.h>

#include "kernel/cpu/jit.h"
#include "support/cuda.h"
#include "support/loops.h"
#include "support/slow.h"

static bool have_cuda;
static char folder[64];

static void model(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_softmax(rp_relu(rp_matmul(in[0], rp_transpose(in[0], 0, 1))), 1);
}

/* x * k + k: a kernel of its own for each k. */
static rp__dag *line(double k) {
    rp__dag_builder *b = rp__dag_new();
    rp__val c = rp__dag_const(b, RP_F32, test_f(k));
    store_new(b, RP_F32, op2(b, RP__ADD, op2(b, RP__MUL, load_new(b, RP_F32, false), c), c), false);
    return rp__dag_finish(b);
}

/* Eager, training, compiled; large enough for the pool. NULL, or what went wrong. */
static const char *work(int seed) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_full(RP_DIMS(300, 200), rp_f64(0.01 * (seed % 7 + 1))), *out, *again;
    rp_set_requires_grad(x, true);
    model(NULL, &x, 1, &out, 1);
    if (rp_backward(rp_sum(out), NULL, NULL) != RP_OK) return rp_error_message();
    rp_tensor *grad = rp_clone(rp_grad_of(x));
    rp_set_grad(x, NULL);
    rp_compiled *f = rp_compile((rp_fn){model, NULL, 0, "model"}, NULL);
    for (int round = 0; round < 3; round++) {
        if (rp_call(f, &x, 1, &again, 1) != RP_OK) return rp_error_message();
        if (rp_backward(rp_sum(again), NULL, NULL) != RP_OK) return rp_error_message();
        if (memcmp(rp_data(out), rp_data(again), 300 * 300 * sizeof(float)) != 0) return "other bits";
        if (memcmp(rp_data(grad), rp_data(rp_grad_of(x)), 300 * 200 * sizeof(float)) != 0) return "another gradient";
        rp_set_grad(x, NULL);
    }
    rp_compiled_release(f);
    rp_tensor *big = rp_rand(RP_DIMS(1000, 1000));
    (void)rp_item(rp_sum(big));
    rp_scope_end(scope, NULL, 0);
    return rp_failed() ? rp_error_message() : NULL;
}

/* Runs `body` in a child, which ends if it hangs; its words on failure. */
static void in_child(const char *(*body)(int), int argument) {
    int words[2];
    assert_int_equal(pipe(words), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(240);
        const char *wrong = body(argument);
        if (wrong && write(words[1], wrong, strlen(wrong)) < 0) _exit(2);
        _exit(wrong != NULL);
    }
    close(words[1]);
    char text[1024];
    ssize_t n = read(words[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    close(words[0]);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status != 0) fail_msg("child %d: status %#x, '%s'", argument, status, text);
}

static atomic_bool stop;
static void *busy(void *seed) {
    const char *wrong = NULL;
    while (!atomic_load(&stop) && !wrong) wrong = work((int)(intptr_t)seed);
    return (void *)(uintptr_t)wrong;
}

/* Locks of the sanitizer's own allocator that another thread holds at the fork stay locked in the child: there is no test of forks
   beside threads with it. */
static void skip_beside_its_allocator(void) {
    if (ADDRESS_CHECKED) skip();
}

/* Other threads are anywhere in the library. */
static void forks_among_threads(void **state) {
    (void)state;
    skip_beside_its_allocator();
    enum { THREADS = 3, FORKS = 25 };
    pthread_t threads[THREADS];
    assert_null(work(0));
    atomic_store(&stop, false);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, busy, (void *)(intptr_t)(i + 1)), 0);
    for (int i = 0; i < FORKS; i++) in_child(work, i);
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    assert_null(work(1));
}

static rp__dag *queued[3];

/* What the parent was compiling, and had not begun to, is compiled by the child as well; so is what is new there. */
static const char *compiles(int k) {
    const char *wrong = work(k);
    if (wrong) return wrong;
    rp__dag *fresh = line(500 + k);
    if (!rp__jit_request(fresh, true)) return rp__jit_reason(fresh);
    rp__jit_drain();
    for (int i = 0; i < 3; i++)
        if (strncmp(rp__jit_reason(queued[i]), "native: ", 8) != 0) return rp__jit_reason(queued[i]);
    rp__dag_release(fresh);
    return NULL;
}

static void forks_while_compiling(void **state) {
    (void)state;
    skip_beside_its_allocator(); /* the thread that compiles allocates */
    if (system("cc --version >/dev/null 2>&1") != 0) skip();
    FILE *f = fopen("./slow-cc", "w");
    assert_non_null(f);
    fputs("#!/bin/sh\n[ \"$1\" = --version ] || sleep 0.3\nexec cc \"$@\"\n", f);
    fclose(f);
    chmod("./slow-cc", 0700);
    setenv("REPRISE_CC", "./slow-cc", 1);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) {
            queued[i] = line(100 * (round + 1) + i);
            (void)rp__jit_request(queued[i], false);
        }
        usleep(round * 150000u); /* in the queue, being compiled, between two */
        in_child(compiles, round);
        rp__jit_drain();
        for (int i = 0; i < 3; i++) {
            if (strncmp(rp__jit_reason(queued[i]), "native: ", 8) != 0) fail_msg("%s", rp__jit_reason(queued[i]));
            rp__dag_release(queued[i]);
        }
    }
    unsetenv("REPRISE_CC");
    unlink("./slow-cc");
}

static const char *cuda_is_refused(int k) {
    rp_tensor *x = rp_set_default_device(rp_cuda(0)) == RP_OK
                       ? rp_full(RP_DIMS(4), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32))
                       : NULL;
    if (x && !rp_is_error(x)) return "a CUDA tensor was made";
    if (!strstr(rp_error_message(), "forked after CUDA")) return rp_error_message();
    if (rp_error_take() != RP_ERROR_DEVICE_LOST) return "another status";
    if (rp_synchronize(rp_cuda(0)) == RP_OK) return "it synchronises";
    (void)rp_error_take();
    (void)rp_set_default_device(rp_cpu());
    (void)rp_error_take();
    return work(k);
}

static rp_tensor *kept;
static const char *cuda_tensor_is_let_go(int k) {
    rp_release(kept);
    (void)rp_error_take();
    return work(k);
}

static void forks_after_cuda(void **state) {
    (void)state;
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    rp_scope scope = rp_scope_begin();
    kept = rp_retain(rp_add(rp_full(RP_DIMS(4), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32)),
                            rp_full(RP_DIMS(4), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32))));
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
    in_child(cuda_is_refused, 1);
    in_child(cuda_tensor_is_let_go, 2);
    float x[4];
    assert_int_equal(rp_to_host(kept, x, sizeof x), RP_OK); /* the parent's goes on */
    assert_true(x[3] == 2);
    rp_release(kept);
}

int main(void) {
    test_device device;
    char path[512];
    have_cuda = test_cuda_choose();
    (void)snprintf(folder, sizeof folder, "fork-XXXXXX");
    if (!mkdtemp(folder) || !getcwd(path, sizeof path - sizeof folder - 8)) return 1;
    setenv("REPRISE_CACHE_DIR", folder, 1);
    (void)snprintf(path + strlen(path), sizeof folder + 8, "/%s/tmp", folder); /* children leave their work there */
    if (mkdir(path, 0700)) return 1;
    setenv("TMPDIR", path, 1);
    setenv("REPRISE_NUM_THREADS", "2", 0);
    test_device_init(&device);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_among_threads),
        cmocka_unit_test(forks_while_compiling),
        cmocka_unit_test(forks_after_cuda),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    if (system(command) != 0) return 1;
    return failed;
}
