/* Memory that several streams use: it is not used again before the last of them is done with it, whoever wrote or read it: an
   op, a graph, a compiled function. Streams are ordered by events only where a program has to, by reading what another stream
   wrote. */
/* ctest: labels=threads timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <reprise.h>

#include "core/alloc.h"
#include "support/each_device.h"

enum { ROUNDS = 5 };
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

/* The argument is released while another stream reads it, and memory like it is written. */
static void released(how h, const rp_compile_options *options) {
    rp_stream *here = rp_current_stream(device), *there = rp_stream_new(device);
    rp_compiled *f = rp_compile(fn, options);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
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
    rp_compiled_release(f);
    rp_stream_release(there);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_released, begin, end),
        cmocka_unit_test_setup_teardown(test_compiled, begin, end),
        cmocka_unit_test_setup_teardown(test_no_memory, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
