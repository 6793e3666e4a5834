/* What a compiled function keeps when it meets many sizes: a limited number of programs, of bytes, of records; nothing that a
   caller or a tape still holds goes with a program that made room, nor what the device still runs. Every result is compared
   with eager's, bit for bit. On the CPU; what is about memory in use also on CUDA (the emulator, or a GPU with
   REPRISE_TEST_CUDA=real). */
/* ctest: labels=compile,cuda timeout=240 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>

#include "support/cuda.h"
#include "support/trace_help.h"

typedef struct net {
    rp_tensor *first, *second;
} net;

static net new_net(int64_t width) {
    net n = {rp_retain(filled(0.1, 2, width, width)), rp_retain(filled(0.2, 2, width, width))};
    return n;
}

static void free_net(net *n) {
    rp_release(n->first);
    rp_release(n->second);
}

static void two_layers(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *n = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_softmax(rp_matmul(rp_relu(rp_matmul(in[0], n->first)), n->second), -1);
}

static size_t rows(rp_compiled *f, const char *kind, const char *of) {
    size_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        n += strcmp(e.kind, kind) == 0 && (!of || strcmp(e.of, of) == 0);
    }
    return n;
}

/* How many programs there are that were made for a size. */
static size_t sized(rp_compiled *f, const char *unit) {
    char seen[256] = "";
    size_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (!strstr(e.of, unit) || !strstr(e.of, " = ") || strcmp(e.of, seen) == 0) continue;
        snprintf(seen, sizeof seen, "%s", e.of);
        n++;
    }
    return n;
}

static int64_t allocated(void) {
    rp_memory_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(rp_memory_stats_get(rp_cpu(), &stats), RP_OK);
    return (int64_t)stats.allocated;
}

static void call(rp_compiled *f, net *n, int64_t size, int64_t width) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = filled(0.01 * (double)size, 2, size, width), *got, *want;
    assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
    two_layers(n, &x, 1, &want, 1);
    assert_same(got, want);
    rp_scope_end(scope, NULL, 0);
}

static void test_many_sizes(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    bool grad = rp_set_grad_enabled(false);
    net n = new_net(8);
    rp_compiled *f = rp_compile((rp_fn){two_layers, &n, sizeof n, "layers"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true, .cache_limit = 8));
    for (int64_t size = 2; size < 300; size++) call(f, &n, size, 8);
    size_t records = rp_explain_count(f);
    for (int64_t size = 300; size < 900; size++) call(f, &n, size, 8);
    assert_int_equal(rp_explain_count(f), records);
    assert_int_equal(sized(f, "specialisation 2"), 64);
    assert_int_equal(explain_total(f, "instance", ""), 897);
    assert_int_equal(explain_total(f, "instance", "instance-evicted"), 897 - 64);
    for (int64_t size = 2; size < 60; size++) call(f, &n, size, 8); /* those that went come back */
    assert_int_equal(explain_total(f, "specialisation", NULL), 2);
    rp_compiled_release(f);
    free_net(&n);
    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* Nodes are grouped and kernels lowered for the first size, for the one at which there are as many rows as columns, and never for
   sizes of a domain that was met. */
static void sizes_share_fusion(int64_t last) {
    rp_scope scope = rp_scope_begin();
    bool grad = rp_set_grad_enabled(false);
    net n = new_net(8);
    rp_compiled *f = rp_compile((rp_fn){two_layers, &n, sizeof n, "layers"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true, .cache_limit = 8));
    for (int64_t size = 11; size > 8; size--) call(f, &n, size, 8);
    const int64_t kernels = explain_total(f, "lowering", NULL);
    assert_int_equal(explain_total(f, "fusion", NULL), 1);
    assert_true(kernels > 0);
    call(f, &n, 8, 8);
    assert_int_equal(explain_total(f, "fusion", NULL), 2);
    const int64_t both = explain_total(f, "lowering", NULL);
    assert_true(both <= 2 * kernels);
    for (int64_t size = 12; size <= last; size++) call(f, &n, size, 8);
    for (int64_t size = 9; size < 14; size++) call(f, &n, size, 8); /* built anew, where they were evicted */
    assert_int_equal(explain_total(f, "fusion", NULL), 2);
    assert_int_equal(explain_total(f, "lowering", NULL), both);
    assert_true(explain_total(f, "instance", "") >= last - 8);
    rp_compiled_release(f);
    free_net(&n);
    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}
static void test_sizes_share_fusion(void **state) {
    (void)state;
    sizes_share_fusion(900);
}
static void test_few_sizes_share_fusion(void **state) { /* on a GPU 64 begins another domain */
    (void)state;
    sizes_share_fusion(30);
}

/* Reductions both ways, views, a broadcast, numbers that follow from sizes, random numbers, a scan, a branch, a product with an
   epilogue. */
static void centred(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sub(in[0], rp_mean(in[0], RP_DIMS(0), true));
}
static void doubled(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(in[0], rp_softmax(in[0], 0));
}
static void all_sorts(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *n = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *x = rp_add(in[0], rp_sum(n->first, RP_DIMS(0))), *chosen = NULL;
    rp_tensor *y = rp_div(rp_sub(x, rp_mean(x, RP_DIMS(1), true)), rp_mean(rp_exp(x)));
    rp_tensor *both[2] = {y, x};
    rp_tensor *t = rp_relu(rp_matmul(rp_transpose(y, 0, 1), rp_softmax(y, 0)));
    rp_cond(rp_gt(rp_sum(x), rp_sum(y)), (rp_fn){centred, NULL, 0, "centred"}, (rp_fn){doubled, NULL, 0, "doubled"}, &y,
            1, &chosen, 1);
    out[0] = rp_matmul(rp_dropout(chosen, 0.5, true), t);
    out[1] = rp_cumsum(rp_mul(rp_view(rp_cat(both, 2, 1), RP_DIMS(-1, 4)), rp_mean(y)), 0);
}

/* A program that takes grouping and kernels over gives the bits of one that does not. In builds with assertions each kernel that is taken over
   is lowered again and compared. */
static void all_sizes(bool train) {
    rp_scope scope = rp_scope_begin();
    bool grad = rp_set_grad_enabled(train);
    net n = new_net(8), m = new_net(8);
    rp_set_requires_grad(n.first, train), rp_set_requires_grad(m.first, train);
    rp_compiled *f = rp_compile((rp_fn){all_sorts, &n, sizeof n, "sorts"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true, .instance_limit = 3));
    int64_t grouped = 0, met = 0;
    for (int64_t size = 2; size < 70; size++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *x = filled(0.01 * (double)size, 2, size, (int64_t)8), *got[2], *want[2];
        rp_manual_seed((uint64_t)size);
        assert_int_equal(rp_call(f, &x, 1, got, 2), RP_OK);
        rp_manual_seed((uint64_t)size);
        all_sorts(&m, &x, 1, want, 2);
        for (int k = 0; k < 2; k++) assert_same(got[k], want[k]);
        for (int k = 0; k < 2 && train; k++) {
            rp_tensor **out = k ? want : got;
            assert_int_equal(rp_backward(rp_add(rp_mean(out[0]), rp_sum(out[1])), NULL, NULL), RP_OK);
        }
        if (train) assert_same(rp_grad_of(n.first), rp_grad_of(m.first));
        rp_scope_end(inner, NULL, 0);
        if (size == 40) grouped = explain_total(f, "fusion", NULL), met = explain_total(f, "instance", "");
    }
    assert_int_equal(explain_total(f, "skip", NULL), 0);
    assert_true(grouped > 0 && grouped < met);
    /* sizes that equal others, or not, as those before did */
    assert_true(explain_total(f, "fusion", NULL) - grouped <= 6);
    rp_compiled_release(f);
    free_net(&n);
    free_net(&m);
    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}
static void test_all_sorts(void **state) {
    (void)state;
    all_sizes(false);
}
static void test_all_sorts_training(void **state) {
    (void)state;
    all_sizes(true);
}

static void test_bytes(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    bool grad = rp_set_grad_enabled(false);
    net n = new_net(64);
    const int64_t before = allocated(), limit = 1 << 20, largest = 1000 * 64 * 4;
    rp_compiled *f = rp_compile((rp_fn){two_layers, &n, sizeof n, "layers"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true, .instance_bytes = (uint64_t)limit));
    for (int64_t size = 500; size < 1000; size += 7) {
        call(f, &n, size, 64);
        /* the last one exceeds the limit at most; beside it, what the specialisation of the first call holds */
        assert_true(allocated() - before < limit + 8 * largest);
    }
    assert_true(sized(f, "specialisation 2") < 8);
    rp_compiled_release(f);
    assert_int_equal(allocated(), before);
    free_net(&n);
    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* A function that reads a value runs in segments, of which each size has its own: the same limit holds for them. */
static void read_in_the_middle(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *h = rp_softmax(in[0], 1);
    const double first = rp_item_f64(rp_select(rp_select(h, 0, 0), 0, 0));
    out[0] = rp_sub(rp_mul_scalar(h, rp_f64(first > 0 ? 2 : 3)), rp_mean(in[0], RP_DIMS(0), true));
}

static void test_bytes_of_segments(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    const int64_t before = allocated(), limit = 1 << 20, largest = 1000 * 64 * 4;
    rp_compiled *f = rp_compile((rp_fn){read_in_the_middle, NULL, 0, "reads"},
                                RP_OPTIONS(rp_compile_options, .instance_bytes = (uint64_t)limit));
    int64_t made = 0;
    for (int64_t size = 500; size < 1000; size += 9) {
        for (int again = 0; again < 2; again++) {
            rp_scope inside = rp_scope_begin();
            rp_tensor *x = filled(0.01 * (double)size, 2, size, 64), *got, *want;
            assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
            read_in_the_middle(NULL, &x, 1, &want, 1);
            assert_same(got, want);
            rp_scope_end(inside, NULL, 0);
            if (again && size > 500)
                assert_int_equal(explain_total(f, "specialisation", NULL), made); /* nothing was compiled anew */
            made = explain_total(f, "specialisation", NULL);
        }
        assert_true(allocated() - before < limit + 12 * largest); /* segments of two calls stay */
    }
    assert_true(explain_total(f, "instance", "instance-evicted") > 50);
    rp_compiled_release(f);
    assert_int_equal(allocated(), before);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* A limit of one: forward and backward of a size stay together, calls that alternate are rebuilt, and all are right. */
static void test_training(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    net n = new_net(8), m = new_net(8);
    rp_set_requires_grad(n.first, true), rp_set_requires_grad(n.second, true);
    rp_set_requires_grad(m.first, true), rp_set_requires_grad(m.second, true);
    rp_compiled *f = rp_compile((rp_fn){two_layers, &n, sizeof n, "layers"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true, .instance_limit = 1));
    enum { HELD = 5 };
    rp_tensor *got[HELD], *want[HELD];
    for (int64_t size = 2; size < 40; size++) {
        rp_scope inner = rp_scope_begin();
        /* five forwards, whose programs make room for each other, then their backwards */
        for (int k = 0; k < HELD; k++) {
            rp_tensor *x = filled(0.1 * k, 2, size + k, 8);
            assert_int_equal(rp_call(f, &x, 1, &got[k], 1), RP_OK);
            two_layers(&m, &x, 1, &want[k], 1);
        }
        for (int k = 0; k < HELD; k++) {
            assert_same(got[k], want[k]);
            rp_tensor *both[2] = {got[k], want[k]};
            for (int i = 0; i < 2; i++) {
                rp_tensor *squares = rp_sum(rp_mul(both[i], both[i]));
                assert_int_equal(rp_backward(squares, NULL, NULL), RP_OK);
            }
            assert_same(rp_grad_of(n.first), rp_grad_of(m.first));
            assert_same(rp_grad_of(n.second), rp_grad_of(m.second));
        }
        rp_scope_end(inner, NULL, 0);
    }
    assert_int_equal(sized(f, "specialisation 2, forward"), 1);
    assert_int_equal(sized(f, "specialisation 2, backward"), 1);
    rp_compiled_release(f);
    free_net(&n);
    free_net(&m);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* A result outlives the program that made it, and the function. */
static void test_results_stay(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    bool grad = rp_set_grad_enabled(false);
    net n = new_net(8);
    rp_compiled *f = rp_compile((rp_fn){two_layers, &n, sizeof n, "layers"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true, .instance_limit = 2));
    enum { HELD = 20 };
    rp_tensor *got[HELD], *want[HELD];
    for (int k = 0; k < HELD; k++) {
        rp_tensor *x = filled(0.1 * k, 2, (int64_t)(k + 3), (int64_t)8);
        assert_int_equal(rp_call(f, &x, 1, &got[k], 1), RP_OK);
        two_layers(&n, &x, 1, &want[k], 1);
    }
    rp_compiled_release(f);
    for (int k = 0; k < HELD; k++) assert_same(got[k], want[k]);
    free_net(&n);
    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* ---- several threads, whose calls evict each other's programs */

typedef struct job {
    rp_compiled *f;
    net *n;
    int number;
} job;

static void *run_job(void *arg) {
    const job *j = arg;
    rp_set_grad_enabled(false);
    rp_scope scope = rp_scope_begin();
    for (int64_t turn = 0; turn < 120; turn++) call(j->f, j->n, 2 + (turn * (j->number + 1)) % 17, 8);
    rp_scope_end(scope, NULL, 0);
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    net n = new_net(8);
    rp_compiled *f = rp_compile((rp_fn){two_layers, &n, sizeof n, "layers"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true, .instance_limit = 3));
    bool grad = rp_set_grad_enabled(false);
    call(f, &n, 4, 8);
    call(f, &n, 5, 8);
    rp_set_grad_enabled(grad);
    enum { JOBS = 4 };
    pthread_t threads[JOBS];
    job jobs[JOBS];
    for (int k = 0; k < JOBS; k++) {
        jobs[k] = (job){f, &n, k};
        assert_int_equal(pthread_create(&threads[k], NULL, run_job, &jobs[k]), 0);
    }
    for (int k = 0; k < JOBS; k++) pthread_join(threads[k], NULL);
    assert_true(sized(f, "specialisation 2") <= 3);
    assert_true(explain_total(f, "instance", "instance-evicted") > 10);
    rp_compiled_release(f);
    free_net(&n);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* ---- records belong to what they are about */

static int64_t bytes_of(rp_compiled *f, const char *of, const char *message) {
    int64_t found = -1;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, "memory") != 0 || strcmp(e.of, of) != 0 || strcmp(e.message, message) != 0) continue;
        assert_int_equal(found, -1);
        found = e.count;
    }
    return found;
}

static void waves(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_softmax(rp_matmul(rp_sin(in[0]), rp_cos(in[0])), -1);
}

static void test_rows_of_sizes(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = rp_compile((rp_fn){waves, NULL, 0, "waves"}, NULL);
    for (int64_t size = 3; size <= 12; size *= 2) {
        rp_tensor *x = filled(0.2, 2, size, size), *y;
        for (int k = 0; k < 2; k++) assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    }
    assert_int_equal(bytes_of(f, "specialisation 1, forward", "results"), 3 * 3 * 4);
    assert_int_equal(bytes_of(f, "specialisation 2, forward, s0 = 6", "results"), 6 * 6 * 4);
    assert_int_equal(bytes_of(f, "specialisation 2, forward, s0 = 12", "results"), 12 * 12 * 4);
    assert_int_equal(rows(f, "graph", "specialisation 1, forward"), 1);
    assert_int_equal(rows(f, "specialisation", "specialisation 2"), 1);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

static void test_rows_of_units(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = rp_compile((rp_fn){waves, NULL, 0, "waves"}, NULL);
    rp_tensor *x = filled(0.2, 2, 5, 5), *y;
    rp_set_requires_grad(x, true);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_int_equal(rp_backward(rp_sum(y), NULL, NULL), RP_OK);
    }
    assert_true(rows(f, "kernel", "specialisation 1, forward") > 0);
    assert_int_equal(bytes_of(f, "specialisation 1, forward", "results"), 5 * 5 * 4);
    assert_int_equal(bytes_of(f, "specialisation 1, backward", "results"), 5 * 5 * 4);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

static void whole_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *w = *(rp_tensor **)ctx, *gradient;
    (void)n_in, (void)n_out;
    rp_tensor *y = rp_matmul(in[0], w), *loss = rp_mean(rp_mul(y, y));
    if (rp_grad(&loss, 1, &w, 1, NULL, NULL, &gradient) != RP_OK) return;
    bool grad = rp_set_grad_enabled(false);
    rp_sub_(w, rp_mul_scalar(gradient, rp_f64(0.1)));
    rp_set_grad_enabled(grad);
    out[0] = rp_detach(loss);
}

static void test_step_is_named(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *w = filled(0.3, 2, 4, 4), *x = filled(0.1, 2, 6, 4), *loss;
    rp_set_requires_grad(w, true);
    rp_compiled *f =
        rp_compile((rp_fn){whole_step, &w, sizeof w, "step"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int k = 0; k < 3; k++) assert_int_equal(rp_call(f, &x, 1, &loss, 1), RP_OK);
    bool named = false;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, "specialisation") == 0) named = strstr(e.message, "whole training step") != NULL;
        assert_null(strstr(e.message, "inference"));
    }
    assert_true(named);
    assert_true(rows(f, "memory", "specialisation 1, step") > 0);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* Records of specialisations that made room, and of guards that failed, do not add up either. */
static void test_rows_of_evicted(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    bool grad = rp_set_grad_enabled(false);
    rp_compiled *f = rp_compile((rp_fn){waves, NULL, 0, "waves"},
                                RP_OPTIONS(rp_compile_options, .static_sizes = true, .cache_limit = 4));
    size_t records = 0;
    for (int64_t size = 2; size < 300; size++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *row = filled(0.2, 2, (int64_t)1, size), *x = rp_matmul(rp_transpose(row, 0, 1), row), *y;
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        rp_scope_end(inner, NULL, 0);
        if (size == 100) records = rp_explain_count(f);
    }
    assert_int_equal(rp_explain_count(f), records);
    assert_int_equal(explain_total(f, "specialisation", ""), 298);
    assert_int_equal(explain_total(f, "specialisation", "evicted"), 294);
    assert_int_equal(explain_total(f, "guard", "guard-size"), 297);
    rp_compiled_release(f);
    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_sizes),      cmocka_unit_test(test_sizes_share_fusion),
        cmocka_unit_test(test_all_sorts),       cmocka_unit_test(test_all_sorts_training),
        cmocka_unit_test(test_bytes),           cmocka_unit_test(test_bytes_of_segments),
        cmocka_unit_test(test_training),        cmocka_unit_test(test_results_stay),
        cmocka_unit_test(test_threads),         cmocka_unit_test(test_rows_of_sizes),
        cmocka_unit_test(test_rows_of_units),   cmocka_unit_test(test_step_is_named),
        cmocka_unit_test(test_rows_of_evicted),
    };
    int failed = cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
    if (!test_cuda_choose() || rp_set_default_device(rp_cuda(0)) != RP_OK) return 1;
    const struct CMUnitTest cuda[] = {cmocka_unit_test(test_training), cmocka_unit_test(test_results_stay),
                                      cmocka_unit_test(test_few_sizes_share_fusion)};
    return failed + cmocka_run_group_tests_name("cuda", cuda, NULL, NULL);
}
