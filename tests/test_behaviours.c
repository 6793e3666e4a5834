/* Numbered behaviours of PyTorch's CUDA graphs (docs/deviations.md): A.. of the allocator in captures, C.. of branches and
   loops. On the CPU, then on CUDA (the emulator, or a GPU with REPRISE_TEST_CUDA=real). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <reprise.h>

#include "device/capture.h"
#include "support/each_device.h"
#include "tensor/tensor.h"

/* ---- branches and loops */

static void twice(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_f64(2));
}
static void negated(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_neg(in[0]);
}
static void small(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_lt_scalar(rp_amax(in[0], RP_NO_DIMS, false), rp_f64(100));
}
static const rp_fn twice_fn = {twice, NULL, 0, "twice"}, negated_fn = {negated, NULL, 0, "negated"},
                   small_fn = {small, NULL, 0, "small"};

static void a_raw_capture_takes_no_decision(void **state) { /* C1, C5 */
    (void)state;
    rp_tensor *x = rp_ones(RP_DIMS(4)), *on = rp_gt_scalar(rp_amax(x, RP_NO_DIMS, false), rp_f64(0)), *out;
    for (int k = 0; k < 2; k++) {
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, NULL));
        rp_status status =
            k == 0 ? rp_cond(on, twice_fn, negated_fn, &x, 1, &out, 1) : rp_while(small_fn, twice_fn, &x, 1, 0, &out);
        const char *message = rp_error_message(), *name = k == 0 ? "rp_cond" : "rp_while";
        if (!strstr(message, name) || !strstr(message, "test_behaviours.c:") || !strstr(message, "capturing"))
            fail_msg("%s", message);
        assert_int_equal(status, RP_ERROR_CAPTURE);
        assert_true(rp_is_error(out));
        (void)rp_error_take();
        FAILS(RP_ERROR_CAPTURE, name, rp_graph_end(g)); /* it is no graph of half of the work */
        FAILS(RP_ERROR_STATE, "without a preceding", rp_graph_replay(g));
        rp_graph_release(g);
    }
    OK(rp_cond(on, twice_fn, negated_fn, &x, 1, &out, 1));
    assert_true(rp_item_f64(rp_select(out, 0, 0)) == 2);
}

static void branch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    (void)rp_cond(in[1], twice_fn, negated_fn, in, 1, out, 1);
}
static void loop(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    (void)rp_while(small_fn, twice_fn, in, 1, 0, out);
}

static void
a_branch_that_was_never_taken_is_ready(void **state) { /* C2, C3: one node with both branches; a loop's body too */
    (void)state;
    rp_compiled *f = rp_compile((rp_fn){branch, NULL, 0, "branch"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    rp_compiled *w = rp_compile((rp_fn){loop, NULL, 0, "loop"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int k = 0; k < 6; k++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_full(RP_DIMS(4), rp_f64(k + 1)), *out;
        rp_tensor *in[] = {x, rp_lt_scalar(rp_amax(x, RP_NO_DIMS, false), rp_f64(4.5))};
        OK(rp_call(f, in, 2, &out, 1));
        assert_true(rp_item_f64(rp_select(out, 0, 3)) == (k < 4 ? 2 * (k + 1) : -(k + 1)));
        rp_tensor *start = k % 3 == 2 ? rp_full(RP_DIMS(4), rp_f64(200)) : x; /* no turn at all */
        double expected = k % 3 == 2 ? 200 : k + 1;
        while (expected < 100) expected *= 2;
        OK(rp_call(w, &start, 1, &out, 1));
        assert_true(rp_item_f64(rp_select(out, 0, 0)) == expected);
        OK(rp_scope_end(scope, NULL, 0));
    }
    rp_compiled_release(f);
    rp_compiled_release(w);
}

/* ---- memory in captures */

static void
memory_is_no_node(void **state) { /* A4: a segment that a capture needs is taken at once, and is no part of the graph */
    (void)state;
    rp__device *d = rp__device_get(device);
    rp_stream *s = rp_stream_new(device), *main = rp_current_stream(device);
    rp_pool *pool = rp_pool_new(device);
    rp__devgraph *graph;
    rp__capture_random *random;
    size_t n_random;
    OK(rp_set_current_stream(s));
    OK(rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL));
    rp_tensor *t = rp_empty(RP_DIMS(9 << 20));
    rp_fill_(rp_slice(t, 0, 0, 5, 1), rp_f64(1));
    OK(rp__capture_end(s, &graph, &random, &n_random));
    OK(rp_set_current_stream(main));
    assert_int_equal(d->ops->graph_nodes(graph), 1);
    assert_ptr_equal(t->storage->block->pool, pool);
    d->ops->graph_free(graph);
    rp__capture_random_free(random, n_random);
    rp_pool_release(pool);
    rp_stream_release(s);
}

/* The address of a temporary of a capture, which is free again when the capture ends; *second: of one made after it. */
static void *temporary(rp_graph *g, rp_pool *pool, rp_stream *s, void **second) {
    rp_tensor *x = rp_ones(RP_DIMS(70000));
    OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .pool = pool, .stream = s)));
    rp_scope scope = rp_scope_begin();
    void *address = rp_data(rp_neg(x));
    OK(rp_scope_end(scope, NULL, 0));
    scope = rp_scope_begin();
    *second = rp_data(rp_neg(x));
    OK(rp_scope_end(scope, NULL, 0));
    OK(rp_graph_end(g));
    assert_non_null(address);
    return address;
}

static void freed_memory_serves_its_stream(void **state) { /* A6 within a capture, A11 between captures of one pool */
    (void)state;
    rp_pool *pool = rp_pool_new(device);
    rp_stream *s = rp_stream_new(device), *other = rp_stream_new(device);
    rp_graph *g[3] = {rp_graph_new(), rp_graph_new(), rp_graph_new()};
    void *second, *first = temporary(g[0], pool, s, &second);
    assert_ptr_equal(first, second);
    assert_ptr_equal(temporary(g[1], pool, s, &second), first);
    assert_ptr_not_equal(temporary(g[2], pool, other, &second), first);
    for (int k = 0; k < 3; k++) rp_graph_release(g[k]);
    rp_stream_release(s);
    rp_stream_release(other);
    rp_pool_release(pool);
}

static void
captures_keep_the_cache(void **state) { /* A5: nothing is given back to the device while any capture is under way */
    (void)state;
    rp_memory_stats cached = {.struct_size = sizeof cached}, now = cached;
    rp_scope scope = rp_scope_begin();
    (void)rp_ones(RP_DIMS(6 << 20));
    OK(rp_scope_end(scope, NULL, 0));
    OK(rp_synchronize(device));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    OK(rp_memory_stats_get(device, &cached));
    OK(rp_empty_cache(device));
    OK(rp_memory_stats_get(device, &now));
    assert_int_equal(now.reserved, cached.reserved);
    OK(rp_graph_end(g));
    OK(rp_empty_cache(device));
    OK(rp_memory_stats_get(device, &now));
    assert_true(now.reserved + (20 << 20) <= cached.reserved);
    rp_graph_release(g);
}

static void a_graph_keeps_its_memory(void **state) { /* A10: nobody else gets it, and it is not given back */
    (void)state;
    rp_memory_stats before = {.struct_size = sizeof before}, now = before;
    OK(rp_memory_stats_get(device, &before));
    rp_stream *s = rp_stream_new(device);
    rp_graph *g = rp_graph_new();
    void *second, *address = temporary(g, NULL, s, &second);
    OK(rp_empty_cache(device));
    OK(rp_memory_stats_get(device, &now));
    assert_true(now.in_private_pools > before.in_private_pools);
    rp_stream *main = rp_current_stream(device);
    OK(rp_set_current_stream(s)); /* the very stream, but no capture */
    for (int k = 0; k < 8; k++) assert_ptr_not_equal(rp_data(rp_empty(RP_DIMS(70000))), address);
    OK(rp_set_current_stream(main));
    rp_graph_release(g);
    OK(rp_memory_stats_get(device, &now));
    assert_int_equal(now.in_private_pools, before.in_private_pools);
    rp_stream_release(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_raw_capture_takes_no_decision, begin, end),
        cmocka_unit_test_setup_teardown(a_branch_that_was_never_taken_is_ready, begin, end),
        cmocka_unit_test_setup_teardown(memory_is_no_node, begin, end),
        cmocka_unit_test_setup_teardown(freed_memory_serves_its_stream, begin, end),
        cmocka_unit_test_setup_teardown(captures_keep_the_cache, begin, end),
        cmocka_unit_test_setup_teardown(a_graph_keeps_its_memory, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
