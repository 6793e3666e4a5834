/* ctest: labels=threads timeout=300 cost=5 */
/* Raw graphs on the CPU device, by PyTorch's numbered behaviours (docs/deviations.md): G.. of CUDAGraph, R.. of random
   numbers, L.. of lifetimes; then the same on CUDA (the emulator, or a GPU with REPRISE_TEST_CUDA=real). test_graphed.c has
   graphed callables. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "autograd/tape.h"
#include "core/alloc.h"
#include "support/graphs.h"

/* ---- raw graphs ---- */

static void test_raw_replay(void **state) { /* G4, G16: the body does not run; replay does, as often as asked */
    (void)state;
    rp_tensor *x = rp_ones(RP_DIMS(4, 3)), *sum = rp_zeros(RP_DIMS(4, 3));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    assert_true(rp_is_capturing(device));
    rp_tensor *y = rp_sin(rp_mul_scalar(x, rp_f64(2)));
    rp_add_(sum, y);
    OK(rp_graph_end(g));
    assert_false(rp_is_capturing(device));
    assert_float_equal(rp_item_f64(rp_amax(sum, RP_NO_DIMS, false)), 0, 0);
    for (int k = 0; k < 3; k++) OK(rp_graph_replay(g));
    rp_tensor *one = rp_sin(rp_mul_scalar(x, rp_f64(2)));
    same(y, one);
    same(sum, rp_add(rp_add(one, one), one));
    rp_fill_(x, rp_f64(0.25)); /* values of what it reads may change */
    OK(rp_graph_replay(g));
    same(y, rp_sin(rp_mul_scalar(x, rp_f64(2))));
    rp_graph_release(g);
}

static void test_raw_states(void **state) { /* G6, G7, G12, G14, G16, G17, G20 */
    (void)state;
    rp_graph *g = rp_graph_new();
    FAILS(RP_ERROR_STATE, "without a preceding successful capture", rp_graph_replay(g));
    FAILS(RP_ERROR_STATE, "not capturing", rp_graph_end(g));
    OK(rp_graph_begin(g, device, NULL));
    FAILS(RP_ERROR_STATE, "capturing already", rp_graph_begin(g, device, NULL));
    OK(rp_graph_end(g)); /* G13: an empty graph is no error */
    OK(rp_graph_replay(g));
    FAILS(RP_ERROR_STATE, "already owns a captured graph", rp_graph_begin(g, device, NULL));
    FAILS(RP_ERROR_STATE, "keep_graph", rp_graph_instantiate(g));
    OK(rp_graph_reset(g));
    FAILS(RP_ERROR_STATE, "without a preceding", rp_graph_replay(g));
    OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .keep_graph = true)));
    rp_tensor *y = rp_ones(RP_DIMS(5));
    OK(rp_graph_end(g));
    OK(rp_graph_instantiate(g));
    OK(rp_graph_replay(g));
    assert_float_equal(rp_item_f64(rp_sum(y)), 5, 0);
    rp_stream *s = rp_current_stream(device);
    rp_graph *other = rp_graph_new();
    FAILS(RP_ERROR_CAPTURE, "default stream", rp_graph_begin(other, device, RP_OPTIONS(rp_graph_options, .stream = s)));
    rp_graph_release(other);
    rp_graph_release(g);
    assert_ptr_equal(rp_current_stream(device), s);
}

static void test_raw_forbidden(void **state) { /* 2.3: a host read invalidates the capture, and says which */
    (void)state;
    rp_stream *before = rp_current_stream(device);
    rp_tensor *x = rp_ones(RP_DIMS(3));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    rp_tensor *y = rp_sum(x);
    (void)rp_item_f64(y);
    assert_int_equal(rp_error_take(), RP_ERROR_CAPTURE);
    FAILS(RP_ERROR_CAPTURE, "invalid", rp_graph_end(g));
    assert_ptr_equal(rp_current_stream(device), before); /* G3, mended: the stream comes back on every path */
    assert_float_equal(rp_item_f64(rp_sum(x)), 3, 0);
    rp_graph_release(g);
    g = rp_graph_new(); /* abandoned while capturing */
    OK(rp_graph_begin(g, device, NULL));
    rp_graph_release(g);
    assert_ptr_equal(rp_current_stream(device), before);
    assert_false(rp_is_capturing(device));
}

static void test_raw_sync_ops(void **state) { /* 2.3: an op whose size depends on values */
    (void)state;
    rp_stream *before = rp_current_stream(device);
    rp_tensor *x = rp_ones(RP_DIMS(3));
    rp_graph *g = rp_graph_new();
    for (int fresh = 0; fresh < 2; fresh++) { /* what the op reads was computed before the capture, or in it */
        OK(rp_graph_begin(g, device, NULL));
        rp_tensor *from = fresh ? rp_neg(x) : x;
        assert_true(rp_is_error(rp_nonzero_at("model.c:7", from)));
        FAILS(RP_ERROR_CAPTURE, "nonzero: an op that reads values on the host", rp_error_status());
        rp_status status = rp_graph_end(g);
        if (!strstr(rp_error_message(), "model.c:7")) fail_msg("no line: %s", rp_error_message());
        FAILS(RP_ERROR_CAPTURE, "in nonzero", status);
        assert_ptr_equal(rp_current_stream(device), before);
    }
    assert_int_equal(rp_size(rp_nonzero(x), 0), 3);
    OK(rp_graph_begin(g, device, NULL)); /* after a failed capture the object is free for another */
    rp_tensor *y = rp_neg(x);
    OK(rp_graph_end(g));
    OK(rp_graph_replay(g));
    same(y, rp_neg(x));
    rp_graph_release(g);
}

static void test_raw_nested(void **state) { /* captures do not nest: the second is refused, the first is whole */
    (void)state;
    rp_stream *before = rp_current_stream(device);
    rp_tensor *x = rp_ones(RP_DIMS(3));
    rp_graph *outer = rp_graph_new(), *inner = rp_graph_new();
    OK(rp_graph_begin(outer, device, NULL));
    FAILS(RP_ERROR_STATE, "capturing already", rp_graph_begin(inner, device, NULL));
    FAILS(RP_ERROR_STATE, "capturing already", rp_graph_begin(inner, rp_cpu(), NULL));
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {square_body, NULL, 0, "square"}, .args = &x, .n_args = 1, .n_out = 1};
    FAILS(RP_ERROR_STATE, "capturing already", rp_make_graphed_callables(&c, 1, NULL, &f));
    FAILS(RP_ERROR_STATE, "not capturing", rp_graph_end(inner));
    rp_tensor *y = rp_mul_scalar(x, rp_f64(4));
    OK(rp_graph_end(outer));
    assert_ptr_equal(rp_current_stream(device), before);
    rp_graph_release(inner);
    OK(rp_graph_replay(outer));
    same(y, rp_mul_scalar(x, rp_f64(4)));
    rp_graph_release(outer);
    same(rp_neg(x), rp_mul_scalar(x, rp_f64(-1)));
}

static void *other_thread(void *arg) { /* what it must not do to a graph that the first thread captures */
    rp_graph *g = arg;
    static rp_status got[4];
    got[0] = rp_graph_end(g);
    (void)rp_error_take();
    got[1] = rp_graph_reset(g);
    (void)rp_error_take();
    rp_graph_release(g);
    got[2] = rp_error_status();
    got[3] = strstr(rp_error_message(), "another thread") ? RP_OK : RP_ERROR_INTERNAL;
    (void)rp_error_take();
    return got;
}

static void test_raw_other_thread(void **state) { /* G12: a capture ends in its thread; a refusal changes nothing */
    (void)state;
    rp_stream *before = rp_current_stream(device);
    rp_tensor *x = rp_ones(RP_DIMS(3));
    for (int mode = RP_CAPTURE_THREAD_LOCAL; mode <= RP_CAPTURE_RELAXED; mode++) {
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .mode = (rp_capture_mode)mode)));
        rp_tensor *y = rp_exp(x);
        pthread_t thread;
        void *got;
        assert_int_equal(pthread_create(&thread, NULL, other_thread, g), 0);
        assert_int_equal(pthread_join(thread, &got), 0);
        const rp_status want[4] = {RP_ERROR_STATE, RP_ERROR_STATE, RP_ERROR_STATE, RP_OK};
        assert_memory_equal(got, want, sizeof want);
        assert_true(rp_is_capturing(device));
        rp_tensor *z = rp_neg(y);
        OK(rp_graph_end(g));
        assert_ptr_equal(rp_current_stream(device), before);
        OK(rp_graph_replay(g));
        same(z, rp_neg(rp_exp(x)));
        rp_graph_release(g);
    }
}

static void
test_raw_random(void **state) { /* R4: replays and eager ops together give the eager sequence; reseeding is honoured */
    (void)state;
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    rp_tensor *a = rp_rand(RP_DIMS(10)), *b = rp_randn(RP_DIMS(7));
    OK(rp_graph_end(g));
    for (int round = 0; round < 2; round++) {
        OK(rp_manual_seed(99));
        rp_tensor *e1 = rp_rand(RP_DIMS(10)), *e2 = rp_randn(RP_DIMS(7)), *e3 = rp_rand(RP_DIMS(3));
        rp_tensor *e4 = rp_rand(RP_DIMS(10));
        OK(rp_manual_seed(99));
        OK(rp_graph_replay(g));
        same(a, e1);
        same(b, e2);
        same(rp_rand(RP_DIMS(3)), e3);
        OK(rp_graph_replay(g));
        same(a, e4);
    }
    rp_graph_release(g);
}

static void test_raw_stream(void **state) { /* G2, G3: the caller's stream, or one of the library's that stays */
    (void)state;
    rp_stream *before = rp_current_stream(device), *own = rp_stream_new(device), *side[2];
    rp_tensor *x = rp_rand(RP_DIMS(40));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .stream = own)));
    assert_ptr_equal(rp_current_stream(device), own);
    rp_tensor *y = rp_exp(x);
    OK(rp_graph_end(g));
    assert_ptr_equal(rp_current_stream(device), before);
    OK(rp_graph_replay(g));
    same(y, rp_exp(x));
    for (int k = 0; k < 2; k++) { /* memory is cached for a stream: captures that name none share one */
        OK(rp_graph_reset(g));
        OK(rp_graph_begin(g, device, NULL));
        side[k] = rp_current_stream(device);
        assert_ptr_not_equal(side[k], before);
        assert_ptr_not_equal(side[k], own);
        OK(rp_graph_end(g));
    }
    assert_ptr_equal(side[0], side[1]);
    rp_graph_release(g);
    rp_stream_release(own);
}

static void test_raw_pool(void **state) { /* G5, G18, M53 for raw graphs */
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(1000));
    uint64_t none = pool_bytes(), before;
    rp_graph *g = rp_graph_new(), *h = rp_graph_new();
    assert_null(rp_graph_pool(g)); /* none before the first capture */
    rp_pool *pool = rp_pool_new(device);
    OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .pool = pool)));
    rp_tensor *y = rp_exp(rp_sin(x));
    OK(rp_graph_end(g));
    assert_ptr_equal(rp_graph_pool(g), pool);
    uint64_t one = pool_bytes();
    assert_true(one > none);
    OK(rp_graph_begin(h, device, RP_OPTIONS(rp_graph_options, .pool = rp_graph_pool(g)))); /* another graph's */
    rp_tensor *z = rp_cos(rp_sin(x));
    OK(rp_graph_end(h));
    assert_ptr_equal(rp_graph_pool(h), pool);
    assert_int_equal(pool_bytes(), one); /* from the segments that are there */
    rp_pool_release(pool);
    OK(rp_graph_replay(g));
    OK(rp_graph_replay(h));
    same(y, rp_exp(rp_sin(x)));
    same(z, rp_cos(rp_sin(x)));
    OK(rp_graph_reset(g));
    assert_ptr_equal(rp_graph_pool(g), pool); /* until the next capture */
    rp_graph_release(g);
    OK(rp_graph_replay(h));
    rp_graph_release(h);
    assert_int_equal(pool_bytes(), one); /* the tensors hold it */
    same(z, rp_cos(rp_sin(x)));
    before = pool_bytes();
    rp_scope scope = rp_scope_begin(); /* the same again, with tensors that go */
    g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    (void)rp_exp(x);
    rp_tensor *last = rp_retain(rp_neg(x));
    OK(rp_graph_end(g));
    OK(rp_scope_end(scope, NULL, 0));
    rp_graph_release(g);
    assert_true(pool_bytes() > before);
    rp_release(last);
    assert_int_equal(pool_bytes(), before);
}

static void *use_of_event(void *arg) { /* of a thread that does not capture */
    static rp_status got[2];
    rp_event *e = arg;
    got[0] = rp_event_synchronize(e); /* of the whole device CUDA never permits, as long as a stream of it captures */
    (void)rp_error_take();
    (void)rp_event_query(e);
    got[1] = rp_error_take();
    return got;
}

static void test_raw_modes(void **state) { /* G8: who may wait for other work while one thread captures */
    (void)state;
    static const struct {
        rp_capture_mode mode;
        rp_status own, other;
    } cases[] = {{RP_CAPTURE_THREAD_LOCAL, RP_ERROR_CAPTURE, RP_OK},
                 {RP_CAPTURE_GLOBAL, RP_ERROR_CAPTURE, RP_ERROR_CAPTURE},
                 {RP_CAPTURE_RELAXED, RP_OK, RP_OK}};
    rp_tensor *x = rp_ones(RP_DIMS(4));
    rp_event *e = rp_event_new(device, false);
    OK(rp_event_record(e, rp_current_stream(device)));
    for (size_t k = 0; k < 3; k++) {
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .mode = cases[k].mode)));
        rp_tensor *y = rp_neg(x);
        pthread_t thread;
        void *result;
        assert_int_equal(pthread_create(&thread, NULL, use_of_event, e), 0);
        assert_int_equal(pthread_join(thread, &result), 0);
        assert_int_equal(((rp_status *)result)[0], cases[k].other);
        assert_int_equal(((rp_status *)result)[1], cases[k].other);
        rp_status ended = RP_OK;
        if (cases[k].other == RP_OK) {
            (void)rp_event_query(e);
            assert_int_equal(rp_error_take(), cases[k].own);
            ended = cases[k].own;
        } else {
            ended = RP_ERROR_CAPTURE;
        }
        assert_int_equal(rp_graph_end(g), ended);
        assert_int_equal(rp_error_take(), ended);
        if (ended == RP_OK) {
            OK(rp_graph_replay(g));
            same(y, rp_neg(x));
        }
        rp_graph_release(g);
    }
    rp_event_release(e);
    rp_graph *g = rp_graph_new();
    FAILS(RP_ERROR_INVALID_ARGUMENT, "not a capture mode",
          rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .mode = (rp_capture_mode)7)));
    rp_graph_release(g);
}

static void *is_capturing(void *arg) {
    *(bool *)arg = rp_is_capturing(device);
    return NULL;
}

static void test_raw_capturing(void **state) { /* G19: of the thread's current stream; each pool is a new one */
    (void)state;
    rp_pool *a = rp_pool_new(device), *b = rp_pool_new(device);
    assert_ptr_not_equal(a, b);
    rp_pool_release(a);
    rp_pool_release(b);
    assert_false(rp_is_capturing(device));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    assert_true(rp_is_capturing(device));
    bool elsewhere = true;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, is_capturing, &elsewhere), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(elsewhere); /* another thread's stream */
    OK(rp_graph_end(g));
    assert_false(rp_is_capturing(device));
    rp_graph_release(g);
}

static void test_raw_timing(void **state) { /* G23: an event of a capture has no time; those around a replay do */
    (void)state;
    rp_tensor *x = rp_ones(RP_DIMS(64));
    rp_event *start = rp_event_new(device, true), *end_ = rp_event_new(device, true);
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    OK(rp_event_record(start, rp_current_stream(device)));
    rp_tensor *y = rp_exp(x);
    OK(rp_event_record(end_, rp_current_stream(device)));
    OK(rp_graph_end(g));
    OK(rp_graph_replay(g));
    OK(rp_synchronize(device));
    assert_true(rp_event_elapsed_ms(start, end_) < 0);
    FAILS(RP_ERROR_CAPTURE, "captur", rp_error_status());
    OK(rp_event_record(start, rp_current_stream(device)));
    OK(rp_graph_replay(g));
    OK(rp_event_record(end_, rp_current_stream(device)));
    OK(rp_event_synchronize(end_));
    assert_true(rp_event_elapsed_ms(start, end_) >= 0);
    same(y, rp_exp(x));
    rp_event_release(start);
    rp_event_release(end_);
    rp_graph_release(g);
}

static void test_raw_liveness(void **state) { /* L3 */
    (void)state;
    const rp_graph_options checked = {.struct_size = sizeof checked, .check_input_liveness = true};
    rp_graph *g = rp_graph_new();
    rp_tensor *base = rp_rand(RP_DIMS(4, 6)), *y;
    rp_scope scope = rp_scope_begin(); /* a view dies, its base lives; empty tensors and those of the capture die */
    rp_tensor *view = rp_select(base, 0, 2), *empty = rp_zeros(RP_DIMS(0));
    OK(rp_graph_begin(g, device, &checked));
    y = rp_cat(((rp_tensor *[]){rp_mul_scalar(rp_sin(view), rp_f64(2)), empty}), 2, 0);
    OK(rp_graph_end(g));
    OK(rp_scope_end(scope, &y, 1));
    OK(rp_graph_replay(g));
    same(y, rp_mul_scalar(rp_sin(rp_select(base, 0, 2)), rp_f64(2)));
    OK(rp_graph_reset(g));
    scope = rp_scope_begin(); /* one of a list */
    rp_tensor *one = rp_ones(RP_DIMS(6)), *part = rp_select(base, 0, 1);
    OK(rp_graph_begin(g, device, &checked));
    y = rp_cat(((rp_tensor *[]){part, one}), 2, 0);
    OK(rp_graph_end(g));
    OK(rp_graph_replay(g));
    OK(rp_scope_end(scope, &y, 1));
    FAILS(RP_ERROR_CAPTURE, "1 tensor that the graph uses has died; the first is used by cat", rp_graph_replay(g));
    OK(rp_graph_reset(g));
    scope = rp_scope_begin(); /* inside a region's function */
    one = rp_ones(RP_DIMS(6));
    OK(rp_graph_begin(g, device, &checked));
    rp_checkpoint(((rp_fn){square_body, NULL, 0, "square"}), &one, 1, &y, 1);
    OK(rp_graph_end(g));
    OK(rp_scope_end(scope, &y, 1));
    FAILS(RP_ERROR_CAPTURE, "has died; the first is used by mul", rp_graph_replay(g));
    rp_graph_release(g);
}

static void
test_random_states(void **state) { /* R2, R5, R7: each graph and generator has its own state, found by use */
    (void)state;
    rp_generator *own = rp_generator_new(device, 21), *standard = rp_default_generator(device);
    uint64_t offset[3];
    rp_graph *g = rp_graph_new(), *plain = rp_graph_new();
    OK(rp_generator_seed(standard, 20));
    OK(rp_graph_begin(g, device, NULL));
    rp_tensor *a = rp_rand(RP_DIMS(10)), *b = rp_rand(RP_DIMS(9), RP_OPTIONS(rp_rand_options, .generator = own)),
              *c = rp_rand(RP_DIMS(3));
    OK(rp_graph_end(g));
    OK(rp_graph_begin(plain, device, NULL));
    rp_tensor *d = rp_neg(a);
    OK(rp_graph_end(plain));
    OK(rp_generator_get(standard, NULL, &offset[0]));
    assert_int_equal(offset[0], 0); /* a capture draws nothing */
    OK(rp_graph_replay(plain));
    OK(rp_generator_get(standard, NULL, &offset[0]));
    assert_int_equal(offset[0], 0); /* nor does a graph without random ops */
    OK(rp_graph_replay(g));
    OK(rp_generator_get(standard, NULL, &offset[0]));
    OK(rp_generator_get(own, NULL, &offset[1]));
    assert_int_equal(offset[0], 3 + 1); /* R3, R4: whole counters of four numbers, the sum of the graph's */
    assert_int_equal(offset[1], 3);
    OK(rp_generator_seed(standard, 20));
    OK(rp_generator_seed(own, 21));
    same(a, rp_rand(RP_DIMS(10)));
    same(b, rp_rand(RP_DIMS(9), RP_OPTIONS(rp_rand_options, .generator = own)));
    same(c, rp_rand(RP_DIMS(3)));
    /* R7: a state set between replays is the one that the next draws from */
    OK(rp_generator_set(own, 77, 5));
    OK(rp_graph_replay(g));
    OK(rp_generator_set(own, 77, 5));
    same(b, rp_rand(RP_DIMS(9), RP_OPTIONS(rp_rand_options, .generator = own)));
    OK(rp_graph_replay(plain));
    same(d, rp_neg(a));
    rp_graph_release(plain);
    rp_generator_release(own); /* the graph holds it */
    OK(rp_generator_seed(standard, 4));
    OK(rp_graph_replay(g));
    OK(rp_generator_seed(standard, 4));
    same(a, rp_rand(RP_DIMS(10)));
    rp_graph_release(g);
}

static void test_random_in_flight(void **state) { /* R5: the state outlives replays that are under way */
    (void)state;
    rp_stream *before = rp_current_stream(device), *s = rp_stream_new(device);
    for (int round = 0; round < 4; round++) {
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, NULL));
        rp_tensor *y = rp_rand(RP_DIMS(3000));
        OK(rp_graph_end(g));
        OK(rp_manual_seed(31));
        OK(rp_set_current_stream(s));
        OK(rp_graph_replay(g));
        OK(rp_set_current_stream(before));
        rp_graph_release(g);
        rp_tensor *others[100]; /* one of them would take its place, which the replay writes */
        for (int k = 0; k < 100; k++)
            others[k] = rp_full(RP_DIMS(2), rp_i64(k + 1000), RP_OPTIONS(rp_full_options, .dtype = RP_I64));
        OK(rp_stream_synchronize(s));
        OK(rp_manual_seed(31));
        for (int k = 0; k < 100; k++) assert_float_equal(rp_item_f64(rp_sum(others[k])), 2 * (k + 1000), 0);
        same(y, rp_rand(RP_DIMS(3000)));
    }
    rp_stream_release(s);
}

static void *capture_random(void *arg) { /* R5: captures at the same time have their own accounts */
    rp_tensor **out = arg;
    (void)rp_set_default_device(device);
    rp_scope scope = rp_scope_begin();
    rp_graph *g = rp_graph_new();
    rp_status status = rp_graph_begin(g, device, NULL);
    rp_tensor *y = NULL;
    for (int k = 0; k < 20; k++) y = rp_rand(RP_DIMS(16));
    if (status == RP_OK) status = rp_graph_end(g);
    for (int k = 0; k < 3 && status == RP_OK; k++) status = rp_graph_replay(g);
    if (status == RP_OK) status = rp_stream_synchronize(rp_current_stream(device)); /* others may capture */
    if (status == RP_OK) *out = rp_retain(y);
    rp_graph_release(g);
    (void)rp_scope_end(scope, NULL, 0);
    return NULL;
}

static void test_random_at_once(void **state) { /* R5 */
    (void)state;
    enum { THREADS = 3 };
    pthread_t thread[THREADS];
    rp_tensor *got[THREADS] = {NULL};
    uint64_t offset;
    OK(rp_manual_seed(8));
    for (int k = 0; k < THREADS; k++) assert_int_equal(pthread_create(&thread[k], NULL, capture_random, &got[k]), 0);
    for (int k = 0; k < THREADS; k++) assert_int_equal(pthread_join(thread[k], NULL), 0);
    OK(rp_generator_get(rp_default_generator(device), NULL, &offset));
    assert_int_equal(offset, THREADS * 3 * 20 * 4);
    for (int k = 0; k < THREADS; k++) { /* each the end of one replay: some 20 draws in a row of the generator's */
        bool found = false;
        assert_non_null(got[k]);
        float is[16], want[16];
        values(got[k], is, 16);
        for (uint64_t replay = 0; replay < THREADS * 3 && !found; replay++) {
            OK(rp_generator_set(rp_default_generator(device), 8, replay * 80 + 76));
            values(rp_rand(RP_DIMS(16)), want, 16);
            found = memcmp(is, want, sizeof is) == 0;
        }
        assert_true(found);
        rp_release(got[k]);
    }
}

static void test_random_seeding(void **state) { /* R6: refused in a capture, which stays as it was */
    (void)state;
    rp_generator *standard = rp_default_generator(device);
    uint64_t seed, offset;
    OK(rp_manual_seed(50));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    rp_tensor *y = rp_rand(RP_DIMS(12));
    FAILS(RP_ERROR_CAPTURE, "setting a generator", rp_manual_seed(51));
    FAILS(RP_ERROR_CAPTURE, "setting a generator", rp_manual_seed(50)); /* the same seed, too */
    FAILS(RP_ERROR_CAPTURE, "setting a generator", rp_generator_seed(standard, 51));
    FAILS(RP_ERROR_CAPTURE, "setting a generator", rp_generator_set(standard, 51, 2));
    FAILS(RP_ERROR_CAPTURE, "reading a generator", rp_generator_get(standard, &seed, &offset));
    rp_generator *made = rp_generator_new(device, 52); /* a number on the host */
    rp_tensor *z = rp_rand(RP_DIMS(12), RP_OPTIONS(rp_rand_options, .generator = made));
    OK(rp_graph_end(g));
    OK(rp_generator_get(standard, &seed, &offset));
    assert_int_equal(seed, 50);
    assert_int_equal(offset, 0);
    OK(rp_graph_replay(g));
    OK(rp_manual_seed(50));
    OK(rp_generator_seed(made, 52));
    same(y, rp_rand(RP_DIMS(12)));
    same(z, rp_rand(RP_DIMS(12), RP_OPTIONS(rp_rand_options, .generator = made)));
    rp_generator_release(made);
    rp_graph_release(g);
}

static void test_raw_repoint(void **state) {
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(8, 16)), *other = rp_rand(RP_DIMS(8, 16));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    rp_tensor *y = rp_softmax(rp_mul_scalar(x, rp_f64(3)), 1), *z = rp_exp(x);
    OK(rp_graph_end(g));
    OK(rp_graph_repoint(g, x, other));
    OK(rp_graph_replay(g));
    same(y, rp_softmax(rp_mul_scalar(other, rp_f64(3)), 1));
    same(z, rp_exp(other));
    OK(rp_graph_repoint(g, x, x)); /* back */
    OK(rp_graph_replay(g));
    same(z, rp_exp(x));
    FAILS(RP_ERROR_GUARD, "cannot stand for", rp_graph_repoint(g, x, rp_rand(RP_DIMS(16, 8))));
    FAILS(RP_ERROR_CAPTURE, "does not use", rp_graph_repoint(g, other, x));
    rp_graph_release(g);
}

/* An executable that is made again reads where the last replay did. */
static void test_raw_repoint_instantiate(void **state) {
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(8, 16)), *other = rp_rand(RP_DIMS(8, 16));
    for (int replays = 0; replays < 2; replays++) {
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .keep_graph = true)));
        rp_tensor *y = rp_exp(x);
        OK(rp_graph_end(g));
        OK(rp_graph_instantiate(g));
        OK(rp_graph_repoint(g, x, other));
        if (replays) OK(rp_graph_replay(g));
        OK(rp_graph_instantiate(g));
        OK(rp_graph_replay(g));
        same(y, rp_exp(other));
        OK(rp_graph_repoint(g, x, x));
        OK(rp_graph_replay(g));
        same(y, rp_exp(x));
        OK(rp_graph_instantiate(g));
        OK(rp_graph_repoint(g, x, other));
        OK(rp_graph_replay(g));
        same(y, rp_exp(other));
        rp_graph_release(g);
    }
}

/* Re-pointing that runs out of memory halfway leaves the graph as it was, and can be tried again. */
static void test_raw_repoint_out_of_memory(void **state) {
    (void)state;
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_rand(RP_DIMS(6)), *other = rp_rand(RP_DIMS(6));
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, NULL));
        rp_tensor *y = rp_exp(x), *z = rp_mul(x, x), *w = rp_sin(x);
        OK(rp_graph_end(g));
        OK(rp_graph_replay(g));
        (void)rp__alloc_fail_at(n);
        failed = rp_graph_repoint(g, x, other) != RP_OK;
        (void)rp__alloc_fail_at(0);
        assert_int_equal(rp_error_take(), failed ? RP_ERROR_OUT_OF_MEMORY : RP_OK);
        for (int again = 0; again < 2; again++) {
            rp_tensor *now = failed && !again ? x : other;
            if (again) OK(rp_graph_repoint(g, x, other));
            OK(rp_graph_replay(g));
            same(y, rp_exp(now));
            same(z, rp_mul(now, now));
            same(w, rp_sin(now));
        }
        rp_graph_release(g);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

static void three_results(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_softmax(in[0], 1);
    out[1] = rp_sum(in[0], RP_DIMS(0));
    out[2] = rp_transpose(rp_cat(in, 2, 0), 0, 1);
}

/* The same of a compiled function whose argument moved. */
static void test_compiled_moved_out_of_memory(void **state) {
    (void)state;
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f = rp_compile((rp_fn){three_results, NULL, 0, "three"},
                                    RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
        rp_tensor *x = rp_rand(RP_DIMS(4, 6)), *other = rp_rand(RP_DIMS(4, 6));
        rp_tensor *args[] = {x, x}, *moved[] = {other, other}, *out[3], *want[3];
        for (int k = 0; k < 4; k++) { /* results are given back: no node has moved yet */
            rp_scope call = rp_scope_begin();
            OK(rp_call(f, args, 2, out, 3));
            OK(rp_scope_end(call, NULL, 0));
        }
        (void)rp__alloc_fail_at(n);
        failed = rp_call(f, moved, 2, out, 3) != RP_OK;
        (void)rp__alloc_fail_at(0);
        assert_int_equal(rp_error_take(), failed ? RP_ERROR_OUT_OF_MEMORY : RP_OK);
        three_results(NULL, moved, 2, want, 3);
        for (int again = failed ? 1 : 0; again < 2; again++) {
            if (again) OK(rp_call(f, moved, 2, out, 3));
            for (int k = 0; k < 3; k++) same(out[k], rp_clone(want[k]));
        }
        rp_compiled_release(f);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

static void
test_raw_lifetime(void **state) { /* A8, L1, L2: what a graph reads outlives its handle; the check reports it */
    (void)state;
    rp_graph *g = rp_graph_new();
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_full(RP_DIMS(6), rp_f64(2));
    OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .check_input_liveness = true)));
    rp_tensor *y = rp_mul_scalar(x, rp_f64(5));
    OK(rp_graph_end(g));
    OK(rp_graph_replay(g));
    assert_float_equal(rp_item_f64(rp_amax(y, RP_NO_DIMS, false)), 10, 0);
    OK(rp_scope_end(scope, &y, 1));
    FAILS(RP_ERROR_CAPTURE, "has died", rp_graph_replay(g));
    OK(rp_graph_reset(g));
    assert_float_equal(rp_item_f64(rp_amax(y, RP_NO_DIMS, false)), 10,
                       0); /* A9: a tensor of the pool outlives the graph */
    rp_graph_release(g);
}

static void test_raw_streams(void **state) { /* G16: graphs of one pool on two streams are ordered */
    (void)state;
    rp_tensor *x = rp_zeros(RP_DIMS(64));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    rp_tensor *y = rp_add_scalar(x, rp_f64(1));
    rp_copy_(x, y);
    OK(rp_graph_end(g));
    rp_stream *first = rp_current_stream(device), *second = rp_stream_new(device);
    for (int k = 0; k < 10; k++) {
        OK(rp_set_current_stream(k % 2 ? second : first));
        OK(rp_graph_replay(g));
    }
    OK(rp_set_current_stream(first));
    OK(rp_synchronize(device));
    assert_float_equal(rp_item_f64(rp_amax(x, RP_NO_DIMS, false)), 10, 0);
    rp_stream_release(second);
    rp_graph_release(g);
}

static void
test_raw_pending(void **state) { /* memory that waits for another stream is asked after while this thread captures */
    (void)state;
    rp_stream *before = rp_current_stream(device), *other = rp_stream_new(device);
    rp_tensor *x = rp_full(RP_DIMS(5000), rp_f64(0.5)), *y = NULL;
    rp_scope scope = rp_scope_begin();
    rp_tensor *first = rp_retain(rp_rand(RP_DIMS(5000))), *gone = first;
    OK(rp_set_current_stream(other));
    for (int k = 0; k < 20; k++) gone = rp_sin(rp_add(gone, x));
    OK(rp_set_current_stream(before));
    rp_retain(gone);
    OK(rp_scope_end(scope, NULL, 0));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    rp_release(gone);
    rp_release(first);
    for (int k = 0; k < 20; k++) y = rp_cos(y ? y : x);
    OK(rp_graph_end(g));
    OK(rp_graph_replay(g));
    rp_tensor *want = x;
    for (int k = 0; k < 20; k++) want = rp_cos(want);
    same(y, want);
    rp_graph_release(g);
    rp_stream_release(other);
}

static void test_raw_bad_index(void **state) { /* a bad index in a replay is an error of the next one */
    (void)state;
    int64_t at[2] = {1, 2}, bad[2] = {1, 9};
    rp_tensor *table = rp_rand(RP_DIMS(4, 3)), *index = rp_from_data(at, RP_DIMS(2), RP_I64);
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    (void)rp_embedding(table, index);
    OK(rp_graph_end(g));
    OK(rp_graph_replay(g));
    rp_copy_(index, rp_from_data(bad, RP_DIMS(2), RP_I64));
    OK(rp_graph_replay(g));
    FAILS(RP_ERROR_INDEX, "embedding", rp_synchronize(device));
    OK(rp_graph_replay(g));
    rp_status status = RP_OK;
    for (int k = 0; k < 1000 && status == RP_OK; k++) status = rp_graph_replay(g); /* without waiting */
    if (status == RP_OK) status = rp_synchronize(device);
    assert_int_equal(status, RP_ERROR_INDEX);
    (void)rp_error_take();
    (void)rp_synchronize(device);
    (void)rp_error_take();
    rp_graph_release(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_raw_replay, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_states, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_forbidden, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_sync_ops, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_nested, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_other_thread, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_random, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_stream, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_pool, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_modes, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_capturing, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_timing, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_liveness, begin, end),
        cmocka_unit_test_setup_teardown(test_random_states, begin, end),
        cmocka_unit_test_setup_teardown(test_random_in_flight, begin, end),
        cmocka_unit_test_setup_teardown(test_random_at_once, begin, end),
        cmocka_unit_test_setup_teardown(test_random_seeding, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_repoint, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_repoint_instantiate, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_repoint_out_of_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_compiled_moved_out_of_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_lifetime, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_streams, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_pending, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_bad_index, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
