/* Memory that several streams use: it is not used again before the last of them is done with it, whoever wrote or read it: an
   op, a graph, a compiled function. Streams are ordered by events only where a program has to, by reading what another stream
   wrote. */
/* ctest: labels=threads timeout=300 cost=16 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <reprise.h>

#include "core/alloc.h"
#include "support/each_device.h"
#include "support/slow.h"

enum { ROUNDS = SLOW_BUILD ? 2 : 5 };
static const int64_t sizes[] = {10, 1000, 100000};

static rp_tensor *wave(int64_t n, double step) {
    return rp_sin(rp_mul_scalar(
        rp_arange(rp_i64(0), rp_i64(n), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)), rp_f64(step)));
}

static void half(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *t = rp_softmax(in[0], 0);
    out[0] = rp_add_scalar(rp_mul(rp_sin(in[0]), rp_sum(t)), rp_f64(1));
}
static const rp_fn fn = {half, NULL, 0, "half"};

static void follow(rp_stream *s, rp_stream *before) { /* what s is given now runs behind what `before` has */
    rp_event *e = rp_event_new(device, false);
    OK(rp_event_record(e, before));
    OK(rp_stream_wait_event(s, e));
    rp_event_release(e);
    OK(rp_set_current_stream(s));
}

typedef enum how { BY_OP, BY_GRAPH, BY_GRAPHED, BY_FUNCTION } how;

static rp_tensor *run(how h, rp_compiled *f, rp_tensor *x, rp_stream *here, rp_stream *there) {
    rp_tensor *y = NULL;
    if (h == BY_GRAPH) {
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, NULL));
        half(NULL, &x, 1, &y, 1);
        OK(rp_graph_end(g));
        follow(there, here);
        OK(rp_graph_replay(g));
        rp_graph_release(g); /* while it runs */
    } else if (h == BY_GRAPHED) {
        rp_compiled *graphed;
        OK(rp_make_graphed_callables(&(rp_graphed_callable){.fn = fn, .args = &x, .n_args = 1, .n_out = 1}, 1, NULL,
                                     &graphed));
        follow(there, here);
        OK(rp_call(graphed, &x, 1, &y, 1));
        rp_compiled_release(graphed);
    } else {
        follow(there, here);
        if (h == BY_OP)
            half(NULL, &x, 1, &y, 1);
        else
            OK(rp_call(f, &x, 1, &y, 1));
    }
    OK(rp_set_current_stream(here));
    return y;
}

/* The argument is released while another stream reads it, and memory like it is written. `back`: that other is the default stream. */
static void released_by(how h, const rp_compile_options *options, bool back) {
    rp_stream *first = rp_current_stream(device), *side = rp_stream_new(device);
    rp_stream *here = back ? side : first, *there = back ? first : side;
    rp_compiled *f = rp_compile(fn, options);
    OK(rp_set_current_stream(here));
    for (size_t k = back; k < sizeof sizes / sizeof *sizes; k++) {
        for (int round = 0; round < ROUNDS; round++) {
            rp_scope outer = rp_scope_begin(), inner = rp_scope_begin();
            rp_tensor *y = run(h, f, wave(sizes[k], round + 1), here, there);
            OK(rp_scope_end(inner, &y, 1));
            for (int i = 0; i < 4; i++) (void)rp_full(&sizes[k], 1, rp_f64(9));
            OK(rp_stream_synchronize(there));
            rp_tensor *x = wave(sizes[k], round + 1), *want;
            half(NULL, &x, 1, &want, 1);
            same(y, want);
            OK(rp_synchronize(device));
            OK(rp_scope_end(outer, NULL, 0));
        }
    }
    OK(rp_set_current_stream(first));
    rp_compiled_release(f);
    rp_stream_release(side);
}
static void released(how h, const rp_compile_options *options) {
    released_by(h, options, false);
    released_by(h, options, true);
}

static void test_released(void **state) {
    (void)state;
    released(BY_OP, NULL);
    released(BY_GRAPH, NULL);
    released(BY_GRAPHED, NULL);
    released(BY_FUNCTION, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    released(BY_FUNCTION, RP_OPTIONS(rp_compile_options, .backend = "cudagraphs"));
    released(BY_FUNCTION, RP_OPTIONS(rp_compile_options, .no_graph = true));
    released(BY_FUNCTION, NULL);
}

/* ---- memory of the program: its deleter runs after the work that reads the memory, and once */

typedef struct wrapped {
    rp_tensor *owner; /* whose memory it is; as of the program */
    rp_stream *home;  /* that the owner writes it on */
    int deleted;
} wrapped;

static void take_back(void *ctx) { /* and write it at once */
    wrapped *w = ctx;
    rp_stream *now = rp_current_stream(device);
    (void)rp_set_current_stream(w->home);
    (void)rp_fill_(w->owner, rp_f64(-77));
    (void)rp_set_current_stream(now);
    rp_release(w->owner);
    w->deleted++;
}

static rp_tensor *wrap(wrapped *w, int64_t n, double step, bool stable) {
    rp_scope scope = rp_scope_begin();
    *w = (wrapped){.owner = rp_retain(wave(n, step)), .home = rp_current_stream(device)};
    OK(rp_scope_end(scope, NULL, 0));
    rp_tensor *x = rp_from_blob(rp_data(w->owner), &n, 1, NULL, RP_F32, device, take_back, w);
    if (stable) OK(rp_declare_stable(x));
    return x;
}

static void deleted_after(how h, const rp_compile_options *options, bool stable) {
    rp_stream *here = rp_current_stream(device), *there = rp_stream_new(device);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        rp_compiled *f = rp_compile(fn, options);
        wrapped w[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            rp_scope outer = rp_scope_begin(), inner = rp_scope_begin();
            rp_tensor *y = run(h, f, wrap(&w[round], sizes[k], round + 1, stable), here, there);
            OK(rp_scope_end(inner, &y, 1));
            OK(rp_stream_synchronize(there));
            rp_tensor *x = wave(sizes[k], round + 1), *want;
            half(NULL, &x, 1, &want, 1);
            same(y, want);
            OK(rp_scope_end(outer, NULL, 0));
        }
        rp_compiled_release(f);
        OK(rp_synchronize(device));
        for (int round = 0; round < ROUNDS; round++) assert_int_equal(w[round].deleted, 1);
    }
    rp_stream_release(there);
}

static void test_deleters(void **state) {
    (void)state;
    for (int stable = 0; stable < 2; stable++) {
        deleted_after(BY_OP, NULL, stable);
        deleted_after(BY_GRAPH, NULL, stable);
        deleted_after(BY_GRAPHED, NULL, stable);
        deleted_after(BY_FUNCTION, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"), stable);
        deleted_after(BY_FUNCTION, RP_OPTIONS(rp_compile_options, .backend = "cudagraphs"), stable);
        deleted_after(BY_FUNCTION, RP_OPTIONS(rp_compile_options, .no_graph = true), stable);
        deleted_after(BY_FUNCTION, NULL, stable);
    }
}

/* Released by work of the default stream alone, in a capture of the thread, and by a stream that is gone: the deleter runs, once,
   when the device is synchronised at the latest. Nobody waits in rp_release. */
static void test_deleters_elsewhere(void **state) {
    (void)state;
    rp_stream *here = rp_current_stream(device), *there = rp_stream_new(device);
    wrapped w[4];
    rp_scope scope = rp_scope_begin();
    rp_tensor *y = rp_sin(wrap(&w[0], 100, 1, false)), *same_values = rp_sin(wave(100, 1));
    OK(rp_scope_end(scope, (rp_tensor *[]){y, same_values}, 2));
    if (device.type == RP_DEVICE_CPU) assert_int_equal(w[0].deleted, 1);
    same(y, same_values);
    assert_int_equal(w[0].deleted, 1);

    rp_graph *g = rp_graph_new();
    scope = rp_scope_begin();
    rp_tensor *x = wrap(&w[1], 100, 1, false), *beside = wrap(&w[2], 100, 1, false);
    follow(there, here);
    OK(rp_set_current_stream(here));
    OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .mode = RP_CAPTURE_RELAXED)));
    y = rp_sin(x);
    rp_stream *inside = rp_current_stream(device);
    OK(rp_set_current_stream(there));
    rp_tensor *z = rp_sin(beside);
    OK(rp_set_current_stream(inside));
    OK(rp_scope_end(scope, (rp_tensor *[]){y, z}, 2));
    OK(rp_graph_end(g));
    OK(rp_synchronize(device));
    assert_int_equal(w[2].deleted, 1);
    assert_int_equal(w[1].deleted, 0);
    same(z, same_values);
    for (int k = 0; k < 2; k++) OK(rp_graph_replay(g));
    same(y, same_values);
    OK(rp_set_current_stream(there));
    OK(rp_graph_replay(g));
    OK(rp_set_current_stream(here));
    rp_graph_release(g);
    OK(rp_synchronize(device));
    assert_int_equal(w[1].deleted, 1);
    same(y, same_values);

    scope = rp_scope_begin();
    x = wrap(&w[3], 100, 1, false);
    follow(there, here);
    z = rp_sin(x);
    OK(rp_set_current_stream(here));
    rp_stream_release(there);
    OK(rp_scope_end(scope, &z, 1));
    OK(rp_synchronize(device));
    assert_int_equal(w[3].deleted, 1);
    same(z, same_values);
}

/* Calls on two streams with nothing between them share temporaries; a result that another stream reads is released before the
   next call. */
static void test_compiled(void **state) {
    (void)state;
    rp_stream *here = rp_current_stream(device), *there = rp_stream_new(device), *on[] = {here, there};
    rp_tensor *x[4], *want[4];
    for (int k = 0; k < 4; k++) {
        x[k] = wave(4000, k + 1);
        half(NULL, &x[k], 1, &want[k], 1);
    }
    OK(rp_synchronize(device));
    for (int no_graph = 0; no_graph < 2; no_graph++) {
        rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .no_graph = no_graph != 0));
        for (int round = 0; round < ROUNDS; round++) {
            rp_tensor *y[4];
            rp_scope scope = rp_scope_begin();
            for (int k = 0; k < 4; k++) {
                OK(rp_set_current_stream(on[k % 2]));
                OK(rp_call(f, &x[k], 1, &y[k], 1));
            }
            OK(rp_set_current_stream(here));
            OK(rp_synchronize(device));
            for (int k = 0; k < 4; k++) same(y[k], want[k]);
            OK(rp_scope_end(scope, NULL, 0));
        }
        for (int round = 0; round < ROUNDS; round++) {
            rp_scope outer = rp_scope_begin(), inner = rp_scope_begin();
            rp_tensor *first, *read, *next;
            OK(rp_call(f, &x[0], 1, &first, 1));
            follow(there, here);
            read = rp_add_scalar(first, rp_f64(0));
            OK(rp_set_current_stream(here));
            OK(rp_scope_end(inner, &read, 1));
            for (int k = 0; k < 2; k++) OK(rp_call(f, &x[1], 1, &next, 1));
            OK(rp_stream_synchronize(there));
            same(read, want[0]);
            same(next, want[1]);
            OK(rp_scope_end(outer, NULL, 0));
        }
        rp_compiled_release(f);
    }
    rp_stream_release(there);
}

/* Memory like that of `n` elements is made, written here, and still holds that when stream `there` is done. */
static void nobody_writes(int64_t n, rp_stream *there) {
    rp_tensor *own[48];
    rp_scope scope = rp_scope_begin();
    for (int k = 0; k < 48; k++) own[k] = rp_full(RP_DIMS(n), rp_f64(k));
    OK(rp_stream_synchronize(there));
    for (int k = 0; k < 48; k++) same(own[k], rp_full(RP_DIMS(n), rp_f64(k)));
    OK(rp_scope_end(scope, NULL, 0));
}

static void noise(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(rp_dropout(in[0], 0.5, true), rp_rand(RP_DIMS(4)));
}

/* A program that draws is told where to begin in memory of its own; it is released before the stream of its last call has
   written that. */
static void test_random(void **state) {
    (void)state;
    rp_stream *here = rp_current_stream(device), *there = rp_stream_new(device);
    for (int kind = 0; kind < 2; kind++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f =
            rp_compile((rp_fn){noise, NULL, 0, "noise"}, RP_OPTIONS(rp_compile_options, .no_graph = kind == 1));
        rp_tensor *x = rp_ones(RP_DIMS(4)), *y;
        for (int k = 0; k < 3; k++) OK(rp_call(f, &x, 1, &y, 1));
        follow(there, here);
        OK(rp_call(f, &x, 1, &y, 1));
        OK(rp_set_current_stream(here));
        rp_compiled_release(f);
        nobody_writes(4, there);
        OK(rp_scope_end(scope, NULL, 0));
    }
    rp_stream_release(there);
}

/* While this thread captures it may give work to streams that do not: what that touches is noted as ever, whether it is released
   before or after the end of the capture. */
static void test_beside_capture(void **state) {
    (void)state;
    rp_stream *here = rp_current_stream(device), *there = rp_stream_new(device);
    for (int late = 0; late < 2; late++) {
        rp_graph *g = rp_graph_new();
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_ones(RP_DIMS(5));
        follow(there, here);
        OK(rp_set_current_stream(here));
        OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .mode = RP_CAPTURE_RELAXED)));
        rp_stream *inside = rp_current_stream(device);
        OK(rp_set_current_stream(there));
        for (int k = 0; k < 8; k++) rp_fill_(x, rp_f64(-1));
        OK(rp_set_current_stream(inside));
        if (!late) OK(rp_scope_end(scope, NULL, 0));
        OK(rp_graph_end(g));
        if (late) OK(rp_scope_end(scope, NULL, 0));
        nobody_writes(5, there);
        rp_graph_release(g);
    }
    rp_stream_release(there);
}

/* A program that moves to another stream and finds no memory there for its results keeps those that it has. */
static void test_no_memory(void **state) {
    (void)state;
    rp_stream *here = rp_current_stream(device), *there = rp_stream_new(device);
    rp_tensor *x = wave(1000, 0.01), *want = NULL, *y = NULL;
    half(NULL, &x, 1, &want, 1);
    bool clean = false;
    for (uint64_t n = 1; n < 1000 && !clean; n++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f = rp_compile(fn, NULL);
        for (int i = 0; i < 3; i++) OK(rp_call(f, &x, 1, &y, 1));
        y = NULL;
        rp_scope_end(scope, NULL, 0);
        scope = rp_scope_begin();
        follow(there, here);
        uint64_t before = rp__alloc_fail_at(n);
        rp_status status = rp_call(f, &x, 1, &y, 1);
        clean = rp__alloc_fail_at(0) - before < n;
        if (status != RP_OK && status != RP_ERROR_OUT_OF_MEMORY) fail_msg("%d: %s", (int)status, rp_error_message());
        (void)rp_error_take();
        follow(here, there);
        rp_tensor *other[8];
        for (int i = 0; i < 8; i++) other[i] = rp_zeros(RP_DIMS(1000));
        OK(rp_call(f, &x, 1, &y, 1));
        for (int i = 0; i < 8; i++) assert_float_equal(rp_item_f64(rp_amax(rp_abs(other[i]), RP_NO_DIMS, false)), 0, 0);
        assert_float_equal(rp_item_f64(rp_amax(rp_abs(rp_sub(y, want)), RP_NO_DIMS, false)), 0, 1e-5);
        OK(rp_error_status());
        rp_compiled_release(f);
        rp_scope_end(scope, NULL, 0);
    }
    assert_true(clean);
    rp_stream_release(there);
}

/* ---- streams that end: their memory serves the next ones, and no sooner than their work is done */

static uint64_t reserved(void) {
    rp_memory_stats stats = {.struct_size = sizeof stats};
    OK(rp_memory_stats_get(device, &stats));
    return stats.reserved;
}

static void test_streams_come_and_go(void **state) {
    (void)state;
    rp_stream *here = rp_current_stream(device);
    uint64_t before = 0;
    for (int round = 0; round < 12; round++) {
        rp_stream *there = rp_stream_new(device);
        rp_scope scope = rp_scope_begin();
        OK(rp_set_current_stream(there));
        for (int64_t n = 10; n < 10000000; n *= 10) (void)rp_fill_(rp_empty(&n, 1), rp_f64(round));
        OK(rp_scope_end(scope, NULL, 0));
        OK(rp_set_current_stream(here));
        rp_stream_release(there);
        if (round == 1) before = reserved();
    }
    assert_int_equal(reserved(), before);
    OK(rp_empty_cache(device));
    assert_true(reserved() < before);
}

static void test_ends_with_work(void **state) {
    (void)state;
    rp_stream *here = rp_current_stream(device);
    const int64_t n = 300000;
    for (int round = 0; round < 4; round++) {
        OK(rp_empty_cache(device)); /* the default stream has nothing of its own to take */
        rp_stream *there = rp_stream_new(device);
        rp_scope scope = rp_scope_begin();
        OK(rp_set_current_stream(there));
        rp_tensor *x = rp_empty(&n, 1);
        for (int i = 0; i < 8; i++) (void)rp_fill_(x, rp_f64(-1));
        OK(rp_scope_end(scope, NULL, 0)); /* the memory is free behind that work */
        OK(rp_set_current_stream(here));
        rp_stream_release(there);
        scope = rp_scope_begin();
        rp_tensor *y[4];
        for (int i = 0; i < 4; i++) y[i] = rp_full(&n, 1, rp_f64(i));
        OK(rp_synchronize(device));
        for (int i = 0; i < 4; i++) {
            assert_true(rp_item_f64(rp_amax(rp_neg(y[i]), RP_NO_DIMS, false)) == -i);
            assert_true(rp_item_f64(rp_amax(y[i], RP_NO_DIMS, false)) == i);
        }
        OK(rp_scope_end(scope, NULL, 0));
    }
}

static void squares(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(in[0], in[0]);
}

/* A stream that its maker has released and nothing but the thread still holds stays current behind a backward that ran on another
   one, and behind a compile. */
static void test_held_by_the_thread_alone(void **state) {
    (void)state;
    const int64_t n = 5;
    rp_stream *here = rp_current_stream(device), *there = rp_stream_new(device);
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_full(&n, 1, rp_f64(3));
    (void)rp_set_requires_grad(x, true);
    rp_tensor *loss = rp_sum(rp_mul(x, x));
    for (int compiled = 0; compiled < 2; compiled++) {
        rp_stream *now = compiled ? rp_stream_new(device) : there;
        OK(rp_stream_wait_stream(now, here));
        OK(rp_set_current_stream(now));
        rp_stream_release(now);
        if (!compiled) {
            OK(rp_backward(loss, NULL, NULL));
        } else {
            rp_compiled *f = rp_compile((rp_fn){squares, NULL, 0, "squares"}, NULL);
            rp_tensor *given = rp_detach(x), *out = NULL;
            for (int k = 0; k < 4; k++) OK(rp_call(f, &given, 1, &out, 1));
            assert_true(rp_item_f64(rp_amax(out, RP_NO_DIMS, false)) == 9);
            rp_compiled_release(f);
        }
        assert_ptr_equal(rp_current_stream(device), now);
        OK(rp_synchronize(device));
        OK(rp_set_current_stream(here));
    }
    assert_true(rp_item_f64(rp_amax(rp_grad_of(x), RP_NO_DIMS, false)) == 6);
    OK(rp_scope_end(scope, NULL, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_released, begin, end),
        cmocka_unit_test_setup_teardown(test_deleters, begin, end),
        cmocka_unit_test_setup_teardown(test_deleters_elsewhere, begin, end),
        cmocka_unit_test_setup_teardown(test_compiled, begin, end),
        cmocka_unit_test_setup_teardown(test_random, begin, end),
        cmocka_unit_test_setup_teardown(test_beside_capture, begin, end),
        cmocka_unit_test_setup_teardown(test_no_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_streams_come_and_go, begin, end),
        cmocka_unit_test_setup_teardown(test_ends_with_work, begin, end),
        cmocka_unit_test_setup_teardown(test_held_by_the_thread_alone, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
