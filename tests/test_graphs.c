/* ctest: labels=threads timeout=300 cost=8 */
/* Raw graphs and graphed callables on the CPU device, by PyTorch's numbered behaviours (docs/deviations.md): M.. of
   make_graphed_callables, G.. of CUDAGraph, R.. of random numbers; then the same on CUDA (the emulator, or a GPU with
   REPRISE_TEST_CUDA=real). */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <reprise.h>

#include "autograd/tape.h"
#include "core/alloc.h"
#include "support/each_device.h"

static void values(rp_tensor *t, float *to, size_t n) { OK(rp_to_host(rp_to_dtype(t, RP_F32), to, n * sizeof *to)); }

static void square_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_mul(in[0], in[0]);
}

/* A leaf without a past: gradients of one that eager results still lead to are added up on the stream of then. */
static rp_tensor *leaf(rp_tensor *values) {
    rp_tensor *x = rp_detach(values);
    OK(rp_set_requires_grad(x, true));
    return x;
}

/* ---- raw graphs ---- */

static void test_raw_replay(void **state) { /* G4, G16: the body does not run; replay does, as often as asked */
    (void)state;
    rp_tensor *x = rp_ones(RP_DIMS(4, 3), RP_F32), *sum = rp_zeros(RP_DIMS(4, 3), RP_F32);
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    assert_true(rp_is_capturing(device));
    rp_tensor *y = rp_sin(rp_mul_scalar(x, rp_f64(2)));
    rp_add_(sum, y, rp_i64(1));
    OK(rp_graph_end(g));
    assert_false(rp_is_capturing(device));
    assert_float_equal(rp_item_f64(rp_amax(sum, RP_NO_DIMS, false)), 0, 0);
    for (int k = 0; k < 3; k++) OK(rp_graph_replay(g));
    rp_tensor *one = rp_sin(rp_mul_scalar(x, rp_f64(2)));
    same(y, one);
    same(sum, rp_add(rp_add(one, one, rp_i64(1)), one, rp_i64(1)));
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
    rp_tensor *y = rp_ones(RP_DIMS(5), RP_F32);
    OK(rp_graph_end(g));
    OK(rp_graph_instantiate(g));
    OK(rp_graph_replay(g));
    assert_float_equal(rp_item_f64(rp_sum(y, RP_NO_DIMS, false, RP_DTYPE_NONE)), 5, 0);
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
    rp_tensor *x = rp_ones(RP_DIMS(3), RP_F32);
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    rp_tensor *y = rp_sum(x, RP_NO_DIMS, false, RP_DTYPE_NONE);
    (void)rp_item_f64(y);
    assert_int_equal(rp_error_take(), RP_ERROR_CAPTURE);
    FAILS(RP_ERROR_CAPTURE, "invalid", rp_graph_end(g));
    assert_ptr_equal(rp_current_stream(device), before); /* G3, mended: the stream comes back on every path */
    assert_float_equal(rp_item_f64(rp_sum(x, RP_NO_DIMS, false, RP_DTYPE_NONE)), 3, 0);
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
    rp_tensor *x = rp_ones(RP_DIMS(3), RP_F32);
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
    rp_tensor *x = rp_ones(RP_DIMS(3), RP_F32);
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
    rp_tensor *x = rp_ones(RP_DIMS(3), RP_F32);
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
    rp_tensor *a = rp_rand(RP_DIMS(10), RP_F32, NULL), *b = rp_randn(RP_DIMS(7), RP_F32, NULL);
    OK(rp_graph_end(g));
    for (int round = 0; round < 2; round++) {
        OK(rp_manual_seed(99));
        rp_tensor *e1 = rp_rand(RP_DIMS(10), RP_F32, NULL), *e2 = rp_randn(RP_DIMS(7), RP_F32, NULL),
                  *e3 = rp_rand(RP_DIMS(3), RP_F32, NULL);
        rp_tensor *e4 = rp_rand(RP_DIMS(10), RP_F32, NULL);
        OK(rp_manual_seed(99));
        OK(rp_graph_replay(g));
        same(a, e1);
        same(b, e2);
        same(rp_rand(RP_DIMS(3), RP_F32, NULL), e3);
        OK(rp_graph_replay(g));
        same(a, e4);
    }
    rp_graph_release(g);
}

static uint64_t pool_bytes(void) {
    rp_memory_stats stats = {.struct_size = sizeof stats};
    OK(rp_synchronize(device));
    OK(rp_memory_stats_get(device, &stats));
    return stats.in_private_pools;
}

static void test_raw_stream(void **state) { /* G2, G3: the caller's stream, or one of the library's that stays */
    (void)state;
    rp_stream *before = rp_current_stream(device), *own = rp_stream_new(device), *side[2];
    rp_tensor *x = rp_rand(RP_DIMS(40), RP_F32, NULL);
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
    rp_tensor *x = rp_rand(RP_DIMS(1000), RP_F32, NULL);
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
    rp_tensor *x = rp_ones(RP_DIMS(4), RP_F32);
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
    rp_tensor *x = rp_ones(RP_DIMS(64), RP_F32);
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
    rp_tensor *base = rp_rand(RP_DIMS(4, 6), RP_F32, NULL), *y;
    rp_scope scope = rp_scope_begin(); /* a view dies, its base lives; empty tensors and those of the capture die */
    rp_tensor *view = rp_select(base, 0, 2), *empty = rp_zeros(RP_DIMS(0), RP_F32);
    OK(rp_graph_begin(g, device, &checked));
    y = rp_cat((rp_tensor *[]){rp_mul_scalar(rp_sin(view), rp_f64(2)), empty}, 2, 0);
    OK(rp_graph_end(g));
    OK(rp_scope_end(scope, &y, 1));
    OK(rp_graph_replay(g));
    same(y, rp_mul_scalar(rp_sin(rp_select(base, 0, 2)), rp_f64(2)));
    OK(rp_graph_reset(g));
    scope = rp_scope_begin(); /* one of a list */
    rp_tensor *one = rp_ones(RP_DIMS(6), RP_F32), *part = rp_select(base, 0, 1);
    OK(rp_graph_begin(g, device, &checked));
    y = rp_cat((rp_tensor *[]){part, one}, 2, 0);
    OK(rp_graph_end(g));
    OK(rp_graph_replay(g));
    OK(rp_scope_end(scope, &y, 1));
    FAILS(RP_ERROR_CAPTURE, "1 tensor that the graph uses has died; the first is used by cat", rp_graph_replay(g));
    OK(rp_graph_reset(g));
    scope = rp_scope_begin(); /* inside a region's function */
    one = rp_ones(RP_DIMS(6), RP_F32);
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
    rp_tensor *a = rp_rand(RP_DIMS(10), RP_F32, NULL), *b = rp_rand(RP_DIMS(9), RP_F32, own),
              *c = rp_rand(RP_DIMS(3), RP_F32, NULL);
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
    same(a, rp_rand(RP_DIMS(10), RP_F32, NULL));
    same(b, rp_rand(RP_DIMS(9), RP_F32, own));
    same(c, rp_rand(RP_DIMS(3), RP_F32, NULL));
    /* R7: a state set between replays is the one that the next draws from */
    OK(rp_generator_set(own, 77, 5));
    OK(rp_graph_replay(g));
    OK(rp_generator_set(own, 77, 5));
    same(b, rp_rand(RP_DIMS(9), RP_F32, own));
    OK(rp_graph_replay(plain));
    same(d, rp_neg(a));
    rp_graph_release(plain);
    rp_generator_release(own); /* the graph holds it */
    OK(rp_generator_seed(standard, 4));
    OK(rp_graph_replay(g));
    OK(rp_generator_seed(standard, 4));
    same(a, rp_rand(RP_DIMS(10), RP_F32, NULL));
    rp_graph_release(g);
}

static void test_random_in_flight(void **state) { /* R5: the state outlives replays that are under way */
    (void)state;
    rp_stream *before = rp_current_stream(device), *s = rp_stream_new(device);
    for (int round = 0; round < 4; round++) {
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, NULL));
        rp_tensor *y = rp_rand(RP_DIMS(3000), RP_F32, NULL);
        OK(rp_graph_end(g));
        OK(rp_manual_seed(31));
        OK(rp_set_current_stream(s));
        OK(rp_graph_replay(g));
        OK(rp_set_current_stream(before));
        rp_graph_release(g);
        rp_tensor *others[100]; /* one of them would take its place, which the replay writes */
        for (int k = 0; k < 100; k++) others[k] = rp_full(RP_DIMS(2), rp_i64(k + 1000), RP_I64);
        OK(rp_stream_synchronize(s));
        OK(rp_manual_seed(31));
        for (int k = 0; k < 100; k++)
            assert_float_equal(rp_item_f64(rp_sum(others[k], RP_NO_DIMS, false, RP_DTYPE_NONE)), 2 * (k + 1000), 0);
        same(y, rp_rand(RP_DIMS(3000), RP_F32, NULL));
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
    for (int k = 0; k < 20; k++) y = rp_rand(RP_DIMS(16), RP_F32, NULL);
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
            values(rp_rand(RP_DIMS(16), RP_F32, NULL), want, 16);
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
    rp_tensor *y = rp_rand(RP_DIMS(12), RP_F32, NULL);
    FAILS(RP_ERROR_CAPTURE, "setting a generator", rp_manual_seed(51));
    FAILS(RP_ERROR_CAPTURE, "setting a generator", rp_manual_seed(50)); /* the same seed, too */
    FAILS(RP_ERROR_CAPTURE, "setting a generator", rp_generator_seed(standard, 51));
    FAILS(RP_ERROR_CAPTURE, "setting a generator", rp_generator_set(standard, 51, 2));
    FAILS(RP_ERROR_CAPTURE, "reading a generator", rp_generator_get(standard, &seed, &offset));
    rp_generator *made = rp_generator_new(device, 52); /* a number on the host */
    rp_tensor *z = rp_rand(RP_DIMS(12), RP_F32, made);
    OK(rp_graph_end(g));
    OK(rp_generator_get(standard, &seed, &offset));
    assert_int_equal(seed, 50);
    assert_int_equal(offset, 0);
    OK(rp_graph_replay(g));
    OK(rp_manual_seed(50));
    OK(rp_generator_seed(made, 52));
    same(y, rp_rand(RP_DIMS(12), RP_F32, NULL));
    same(z, rp_rand(RP_DIMS(12), RP_F32, made));
    rp_generator_release(made);
    rp_graph_release(g);
}

static void test_raw_repoint(void **state) {
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(8, 16), RP_F32, NULL), *other = rp_rand(RP_DIMS(8, 16), RP_F32, NULL);
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
    FAILS(RP_ERROR_GUARD, "cannot stand for", rp_graph_repoint(g, x, rp_rand(RP_DIMS(16, 8), RP_F32, NULL)));
    FAILS(RP_ERROR_CAPTURE, "does not use", rp_graph_repoint(g, other, x));
    rp_graph_release(g);
}

/* An executable that is made again reads where the last replay did. */
static void test_raw_repoint_instantiate(void **state) {
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(8, 16), RP_F32, NULL), *other = rp_rand(RP_DIMS(8, 16), RP_F32, NULL);
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
        rp_tensor *x = rp_rand(RP_DIMS(6), RP_F32, NULL), *other = rp_rand(RP_DIMS(6), RP_F32, NULL);
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
    out[1] = rp_sum(in[0], RP_DIMS(0), false, RP_DTYPE_NONE);
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
        rp_tensor *x = rp_rand(RP_DIMS(4, 6), RP_F32, NULL), *other = rp_rand(RP_DIMS(4, 6), RP_F32, NULL);
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
    rp_tensor *x = rp_full(RP_DIMS(6), rp_f64(2), RP_F32);
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
    rp_tensor *x = rp_zeros(RP_DIMS(64), RP_F32);
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

static void test_raw_bad_index(void **state) { /* a bad index in a replay is an error of the next one */
    (void)state;
    int64_t at[2] = {1, 2}, bad[2] = {1, 9};
    rp_tensor *table = rp_rand(RP_DIMS(4, 3), RP_F32, NULL), *index = rp_from_data(at, RP_DIMS(2), RP_I64);
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

/* ---- graphed callables ---- */

typedef struct mlp {
    rp_tensor *w1, *b1, *w2, *b2;
} mlp;

static rp_tensor *parameter(rp_tensor *t) {
    rp_tensor *p = rp_retain(rp_detach(rp_mul_scalar(rp_add_scalar(t, rp_f64(-0.5)), rp_f64(0.6))));
    OK(rp_set_requires_grad(p, true));
    return p;
}
static void mlp_make(mlp *m) {
    OK(rp_manual_seed(3));
    m->w1 = parameter(rp_rand(RP_DIMS(64, 10), RP_F32, NULL));
    m->b1 = parameter(rp_rand(RP_DIMS(64), RP_F32, NULL));
    m->w2 = parameter(rp_rand(RP_DIMS(10, 64), RP_F32, NULL));
    m->b2 = parameter(rp_rand(RP_DIMS(10), RP_F32, NULL));
}
static void mlp_free(mlp *m) {
    rp_release(m->w1);
    rp_release(m->b1);
    rp_release(m->w2);
    rp_release(m->b2);
}
static void mlp_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    mlp *m = ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_linear(rp_relu(rp_linear(in[0], m->w1, m->b1)), m->w2, m->b2);
}

static rp_compiled *graph_mlp(mlp *m, rp_tensor *x) {
    rp_compiled *f;
    rp_graphed_callable c = {
        .fn = {mlp_body, m, sizeof *m, "mlp"}, .args = &x, .n_args = 1, .params = &m->w1, .n_params = 4, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    return f;
}

static void
test_graphed_training(void **state) { /* M16, M29-M34, M40, M42, M54: equal to eager, bit for bit, step by step */
    (void)state;
    mlp a, b;
    mlp_make(&a);
    mlp_make(&b);
    rp_tensor *sample = rp_rand(RP_DIMS(8, 10), RP_F32, NULL);
    rp_compiled *f = graph_mlp(&a, sample);
    assert_null(rp_grad_of(a.w1)); /* M16: nothing accumulated by warm-up or capture */
    for (int step = 0; step < 5; step++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_rand(RP_DIMS(8, 10), RP_F32, NULL), *out, *eager;
        OK(rp_call(f, &x, 1, &out, 1));
        mlp_body(&b, &x, 1, &eager, 1);
        same(out, eager);
        OK(rp_backward(rp_sum(rp_mul(out, out), RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
        OK(rp_backward(rp_sum(rp_mul(eager, eager), RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
        same(rp_grad_of(a.w1), rp_grad_of(b.w1)); /* also the second micro-batch, which adds (M42) */
        same(rp_grad_of(a.b2), rp_grad_of(b.b2));
        if (step % 2) {
            bool grad = rp_set_grad_enabled(false);
            rp_tensor *pa[] = {a.w1, a.b1, a.w2, a.b2}, *pb[] = {b.w1, b.b1, b.w2, b.b2};
            for (int k = 0; k < 4; k++) {
                rp_sub_(pa[k], rp_grad_of(pa[k]), rp_f64(0.01));
                rp_sub_(pb[k], rp_grad_of(pb[k]), rp_f64(0.01));
                OK(rp_set_grad(pa[k], NULL));
                OK(rp_set_grad(pb[k], NULL));
            }
            (void)rp_set_grad_enabled(grad);
        }
        OK(rp_scope_end(scope, NULL, 0));
    }
    bool grad = rp_set_grad_enabled(false); /* M36 */
    rp_tensor *out;
    OK(rp_call(f, &sample, 1, &out, 1));
    assert_false(rp_requires_grad(out));
    (void)rp_set_grad_enabled(grad);
    rp_compiled_release(f);
    mlp_free(&a);
    mlp_free(&b);
}

static void test_graphed_errors(void **state) { /* M27, M28, M31, M33, M34: upstream is silent */
    (void)state;
    mlp m;
    mlp_make(&m);
    rp_tensor *x = rp_rand(RP_DIMS(4, 10), RP_F32, NULL), *out, *again;
    rp_compiled *f = graph_mlp(&m, x);
    rp_tensor *wide = rp_rand(RP_DIMS(4, 11), RP_F32, NULL), *ints = rp_zeros(RP_DIMS(4, 10), RP_I64);
    FAILS(RP_ERROR_GUARD, "argument 0 is float32 (4, 11)", rp_call(f, &wide, 1, &out, 1));
    FAILS(RP_ERROR_GUARD, "int64", rp_call(f, &ints, 1, &out, 1));
    FAILS(RP_ERROR_GUARD, "called with 0 arguments", rp_call(f, NULL, 0, &out, 1));
    OK(rp_call(f, &x, 1, &out, 1));
    OK(rp_call(f, &x, 1, &again, 1));
    assert_true(rp_is_error(rp_sin(out))); /* overwritten by the second call */
    assert_int_equal(rp_error_status(), RP_ERROR_STALE);
    (void)rp_error_take();
    OK(rp_backward(rp_sum(again, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
    OK(rp_call(f, &x, 1, &out, 1));
    rp_tensor *loss = rp_sum(out, RP_NO_DIMS, false, RP_DTYPE_NONE);
    OK(rp_backward(loss, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true)));
    FAILS(RP_ERROR_STATE, "second backward", rp_backward(loss, NULL, NULL));
    OK(rp_call(f, &x, 1, &out, 1));
    FAILS(RP_ERROR_STATE, "differentiated once",
          rp_backward(rp_sum(out, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL,
                      RP_OPTIONS(rp_backward_options, .create_graph = true)));
    rp_compiled_release(f);
    mlp_free(&m);
}

static void test_graphed_validation(void **state) { /* M3, M9, M14, M15 */
    (void)state;
    mlp m;
    mlp_make(&m);
    rp_compiled *f;
    rp_tensor *x = rp_rand(RP_DIMS(4, 10), RP_F32, NULL),
              *wide = rp_expand(rp_rand(RP_DIMS(1, 10), RP_F32, NULL), RP_DIMS(4, 10));
    rp_graphed_callable c = {
        .fn = {mlp_body, &m, sizeof m, "mlp"}, .args = &wide, .n_args = 1, .params = &m.w1, .n_params = 4, .n_out = 1};
    FAILS(RP_ERROR_INVALID_ARGUMENT, "expanded", rp_make_graphed_callables(&c, 1, NULL, &f));
    rp_tensor *two[] = {x, rp_view(x, RP_DIMS(40))};
    c.args = two;
    c.n_args = 2;
    FAILS(RP_ERROR_INVALID_ARGUMENT, "shares memory", rp_make_graphed_callables(&c, 1, NULL, &f));
    FAILS(RP_ERROR_INVALID_ARGUMENT, "no callable", rp_make_graphed_callables(NULL, 0, NULL, &f));
    rp_tensor *unused = rp_rand(RP_DIMS(3), RP_F32, NULL);
    OK(rp_set_requires_grad(unused, true));
    rp_tensor *more[] = {x, unused};
    c.args = more;
    assert_int_not_equal(rp_make_graphed_callables(&c, 1, NULL, &f), RP_OK); /* M15: unused, and not allowed */
    (void)rp_error_take();
    OK(rp_make_graphed_callables(&c, 1, RP_OPTIONS(rp_graphed_options, .allow_unused_input = true), &f));
    rp_tensor *out;
    OK(rp_call(f, more, 2, &out, 1));
    OK(rp_backward(rp_sum(out, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
    assert_null(rp_grad_of(unused));
    rp_compiled_release(f);
    mlp_free(&m);
}

static void half_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *y = rp_dropout(in[0], 0.5, true, NULL);
    out[0] = rp_tanh(y);
    out[1] = in[0]; /* a result that is an argument */
}

static void test_graphed_several(void **state) { /* M2, M20-M23, M50, R4: two in one pool; dropout equals eager's */
    (void)state;
    mlp m;
    mlp_make(&m);
    rp_tensor *x = rp_rand(RP_DIMS(6, 10), RP_F32, NULL), *y = rp_rand(RP_DIMS(6, 10), RP_F32, NULL);
    OK(rp_set_requires_grad(y, true));
    rp_graphed_callable c[2] = {
        {.fn = {mlp_body, &m, sizeof m, "mlp"}, .args = &x, .n_args = 1, .params = &m.w1, .n_params = 4, .n_out = 1},
        {.fn = {half_body, NULL, 0, "half"}, .args = &y, .n_args = 1, .n_out = 2}};
    rp_compiled *f[2];
    OK(rp_make_graphed_callables(c, 2, NULL, f));
    OK(rp_manual_seed(11));
    rp_tensor *h, *out[2], *eager[2], *eh;
    OK(rp_call(f[0], &x, 1, &h, 1));
    OK(rp_call(f[1], &h, 1, out, 2));
    OK(rp_backward(rp_sum(out[0], RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
    rp_tensor *w = rp_clone(rp_grad_of(m.w1));
    OK(rp_set_grad(m.w1, NULL));
    OK(rp_manual_seed(11));
    mlp_body(&m, &x, 1, &eh, 1);
    half_body(NULL, &eh, 1, eager, 2);
    same(out[0], eager[0]);
    same(out[1], eh);
    OK(rp_backward(rp_sum(eager[0], RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
    same(w, rp_grad_of(m.w1));
    OK(rp_graphed_set_training(f[1], true)); /* M45: another mode runs eagerly */
    OK(rp_call(f[1], &y, 1, out, 2));
    OK(rp_graphed_set_training(f[1], false));
    rp_compiled_release(f[0]);
    rp_compiled_release(f[1]);
    mlp_free(&m);
}

static void test_raw_pending(void **state) { /* memory that waits for another stream is asked after while this thread captures */
    (void)state;
    rp_stream *before = rp_current_stream(device), *other = rp_stream_new(device);
    rp_tensor *x = rp_full(RP_DIMS(5000), rp_f64(0.5), RP_F32), *y = NULL;
    rp_scope scope = rp_scope_begin();
    rp_tensor *first = rp_retain(rp_rand(RP_DIMS(5000), RP_F32, NULL)), *gone = first;
    OK(rp_set_current_stream(other));
    for (int k = 0; k < 20; k++) gone = rp_sin(rp_add(gone, x, rp_i64(1)));
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

static void half_weights(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    mlp *m = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_tanh(rp_matmul(in[0], rp_transpose(m->w1, 0, 1)));
}

static void test_graphed_shared_parameters(void **state) { /* one parameter of several callables: its gradients add up */
    (void)state;
    mlp m;
    mlp_make(&m);
    rp_tensor *x = rp_rand(RP_DIMS(6, 10), RP_F32, NULL), *h, *out;
    rp_fn first = {mlp_body, &m, sizeof m, "mlp"}, second = {half_weights, &m, sizeof m, "weights"};
    rp_graphed_callable c[3] = {
        {.fn = first, .args = &x, .n_args = 1, .params = &m.w1, .n_params = 4, .n_out = 1},
        {.fn = second, .args = &x, .n_args = 1, .params = &m.w1, .n_params = 1, .n_out = 1},
        {.fn = second, .args = &x, .n_args = 1, .params = &m.w1, .n_params = 1, .n_out = 1},
    };
    rp_compiled *f[3];
    OK(rp_make_graphed_callables(c, 3, NULL, f));
    rp_tensor *sums[2], *grads[2];
    for (int graphed = 0; graphed < 2; graphed++) {
        if (graphed) {
            OK(rp_call(f[0], &x, 1, &h, 1));
            OK(rp_call(f[1], &x, 1, &out, 1));
        } else {
            first.body(&m, &x, 1, &h, 1);
            second.body(&m, &x, 1, &out, 1);
        }
        rp_tensor *sum = rp_sum(h, RP_NO_DIMS, false, RP_DTYPE_NONE);
        sum = rp_add(sum, rp_sum(out, RP_NO_DIMS, false, RP_DTYPE_NONE), rp_i64(1));
        OK(rp_backward(sum, NULL, NULL));
        sums[graphed] = sum;
        grads[graphed] = rp_clone(rp_grad_of(m.w1));
        for (int k = 0; k < 4; k++) OK(rp_set_grad((&m.w1)[k], NULL));
    }
    same(sums[0], sums[1]);
    same(grads[0], grads[1]);
    for (int k = 0; k < 3; k++) rp_compiled_release(f[k]);
    mlp_free(&m);
}

typedef struct scaling {
    rp_tensor *w;
    float k;
} scaling;
static void scaling_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    scaling *p = ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_mul_scalar(rp_mul(in[0], p->w), rp_f64((double)p->k));
}

static void test_graphed_ctx(void **state) { /* 1.12, M33: what the graph holds of ctx may not change behind it */
    (void)state;
    scaling p;
    memset(&p, 0, sizeof p);
    p.w = rp_ones(RP_DIMS(2), RP_F32);
    p.k = 2;
    rp_tensor *x = rp_full(RP_DIMS(2), rp_f64(3), RP_F32), *out;
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {scaling_body, &p, sizeof p, "scaling"}, .args = &x, .n_args = 1, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    OK(rp_call(f, &x, 1, &out, 1));
    assert_float_equal(rp_item_f64(rp_amax(out, RP_NO_DIMS, false)), 6, 0);
    p.k = 5;
    FAILS(RP_ERROR_GUARD, "scaling: byte", rp_call(f, &x, 1, &out, 1));
    assert_true(rp_is_error(out));
    OK(rp_graphed_set_training(f, true)); /* the other mode runs the function: it reads ctx itself */
    OK(rp_call(f, &x, 1, &out, 1));
    assert_float_equal(rp_item_f64(rp_amax(out, RP_NO_DIMS, false)), 15, 0);
    OK(rp_graphed_set_training(f, false));
    p.k = 2;
    rp_tensor *w = p.w;
    p.w = rp_full(RP_DIMS(2), rp_f64(100), RP_F32);
    FAILS(RP_ERROR_GUARD, "is not what it was at capture", rp_call(f, &x, 1, &out, 1));
    p.w = w;
    rp_fill_(w, rp_f64(4)); /* in place is seen */
    OK(rp_call(f, &x, 1, &out, 1));
    assert_float_equal(rp_item_f64(rp_amax(out, RP_NO_DIMS, false)), 24, 0);
    rp_compiled_release(f);
    c.fn.ctx = NULL;
    FAILS(RP_ERROR_INVALID_ARGUMENT, "ctx", rp_make_graphed_callables(&c, 1, NULL, &f));
}

static void test_graphed_stale_place(void **state) { /* T29, M34: the message names the call that made what is gone */
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(4), RP_F32, NULL), *first, *second;
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {square_body, NULL, 0, "square"}, .args = &x, .n_args = 1, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    OK(rp_call_at("train.c:11", f, &x, 1, &first, 1));
    rp_tensor *part = rp_view_at("train.c:12", first, RP_DIMS(2, 2));
    OK(rp_call_at("train.c:21", f, &x, 1, &second, 1));
    FAILS(RP_ERROR_STALE, "made by rp_call at train.c:11", (rp_sin(first), rp_error_status()));
    FAILS(RP_ERROR_STALE, "rp_call at train.c:11", (rp_sin(part), rp_error_status())); /* a view: the call too */
    same(second, rp_mul(x, x));
    rp_tensor *wide = rp_rand(RP_DIMS(5), RP_F32, NULL);
    FAILS(RP_ERROR_GUARD, "train.c:31", rp_call_at("train.c:31", f, &wide, 1, &second, 1));
    FAILS(RP_ERROR_INVALID_ARGUMENT, "train.c:32", rp_call_at("train.c:32", f, NULL, 1, &second, 1));
    rp_compiled_release(f);
}

static void busy_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *a = rp_exp(rp_sin(in[0]));
    out[0] = rp_tanh(rp_mul(a, rp_sigmoid(rp_mul(in[0], a))));
}

/* M50: the callables of one making in another order than they were captured in. What they would overwrite is an error. */
static void test_graphed_order(void **state) {
    (void)state;
    enum { N = 3 };
    rp_compiled *f[N];
    rp_tensor *sample[N], *x[N], *out[N], *eager[N], *want[N];
    rp_graphed_callable c[N];
    for (int i = 0; i < N; i++) {
        sample[i] = leaf(rp_rand(RP_DIMS(50, 40), RP_F32, NULL));
        c[i] = (rp_graphed_callable){.fn = {busy_body, NULL, 0, "busy"}, .args = &sample[i], .n_args = 1, .n_out = 1};
    }
    OK(rp_make_graphed_callables(c, N, NULL, f));
    static const int orders[][2 * N] = {/* forwards, then backwards */
                                        {0, 1, 2, 2, 1, 0}, {0, 1, 2, 0, 1, 2}, {0, 1, 2, 1, 2, 0},
                                        {2, 1, 0, 0, 1, 2}, {1, 0, 2, 2, 1, 0}, {0, 1, 2, 2, 1, 0}};
    for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
        int refused = 0;
        for (int at = 0; at < N; at++) {
            int i = orders[k][at];
            x[i] = leaf(rp_rand(RP_DIMS(50, 40), RP_F32, NULL));
            eager[i] = leaf(rp_clone(rp_detach(x[i])));
            OK(rp_call(f[i], &x[i], 1, &out[i], 1));
            busy_body(NULL, &eager[i], 1, &want[i], 1);
        }
        for (int at = N; at < 2 * N; at++) {
            int i = orders[k][at];
            OK(rp_backward(rp_sum(want[i], RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
            rp_tensor *loss = rp_sum(out[i], RP_NO_DIMS, false, RP_DTYPE_NONE);
            if (!rp_is_error(loss)) { /* not overwritten: the values are right */
                same(out[i], want[i]);
                if (rp_backward(loss, NULL, NULL) == RP_OK) {
                    same(rp_grad_of(x[i]), rp_grad_of(eager[i]));
                    continue;
                }
            }
            refused++;
            assert_int_equal(rp_error_take(), RP_ERROR_STALE);
        }
        bool legal = orders[k][0] == 0 && orders[k][1] == 1 && orders[k][N] == 2 && orders[k][N + 1] == 1;
        assert_int_equal(refused == 0, legal);
    }
    for (int i = 0; i < N; i++) rp_compiled_release(f[i]);
}

/* M51: separate calls on one pool. Forwards in order, backwards in reverse, and then in another order: nothing is overwritten. */
static void test_graphed_one_pool(void **state) {
    (void)state;
    enum { N = 3 };
    for (int given = 0; given < 2; given++) { /* a pool of its own, or that of a raw graph */
        rp_graph *raw = rp_graph_new();
        OK(rp_graph_begin(raw, device, NULL));
        OK(rp_graph_end(raw));
        rp_pool *pool = given ? rp_graph_pool(raw) : rp_pool_new(device);
        rp_compiled *f[N];
        uint64_t held = 0;
        for (int round = 0; round < 4; round++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *sample[N], *x[N], *eager[N], *out[N], *want[N];
            for (int i = 0; i < N; i++) {
                sample[i] = rp_rand(RP_DIMS(50, 40), RP_F32, NULL);
                OK(rp_set_requires_grad(sample[i], true));
                rp_graphed_callable c = {
                    .fn = {busy_body, NULL, 0, "busy"}, .args = &sample[i], .n_args = 1, .n_out = 1};
                OK(rp_make_graphed_callables(&c, 1, RP_OPTIONS(rp_graphed_options, .pool = pool), &f[i]));
            }
            for (int order = 0; order < 2; order++) {
                for (int i = 0; i < N; i++) {
                    x[i] = rp_rand(RP_DIMS(50, 40), RP_F32, NULL);
                    eager[i] = rp_clone(x[i]);
                    OK(rp_set_requires_grad(x[i], true));
                    OK(rp_set_requires_grad(eager[i], true));
                }
                for (int k = 0; k < N; k++) {
                    int i = order ? N - 1 - k : k;
                    OK(rp_call(f[i], &x[i], 1, &out[i], 1));
                    busy_body(NULL, &eager[i], 1, &want[i], 1);
                }
                for (int k = 0; k < N; k++) {
                    int i = order ? (k + 1) % N : N - 1 - k;
                    OK(rp_backward(rp_sum(out[i], RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
                    OK(rp_backward(rp_sum(want[i], RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
                }
                for (int i = 0; i < N; i++) {
                    same(out[i], want[i]);
                    same(rp_grad_of(x[i]), rp_grad_of(eager[i]));
                    for (int j = 0; j < i; j++) assert_ptr_not_equal(rp_data(out[i]), rp_data(out[j]));
                }
            }
            for (int i = 0; i < N; i++) rp_compiled_release(f[i]);
            OK(rp_scope_end(scope, NULL, 0));
            OK(rp_synchronize(device));
            rp_memory_stats stats = {.struct_size = sizeof stats};
            OK(rp_memory_stats_get(device, &stats));
            if (round == 1) held = stats.in_private_pools;
            if (round > 1) assert_true(stats.in_private_pools <= held); /* the next round takes the same memory */
        }
        if (!given) rp_pool_release(pool);
        rp_graph_release(raw);
    }
}

/* ---- R8: recomputation draws again what the forward drew */

static void drop_inner(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    rp_tensor *h = rp_sin(rp_dropout(in[0], 0.5, true, NULL));
    out[0] = rp_mul(h, rp_dropout(h, 0.25, true, ctx)); /* ctx: a generator, or the default one */
}
static void drop_nested(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    rp_tensor *h = rp_dropout(in[0], 0.5, true, NULL), *deep;
    rp_checkpoint(((rp_fn){drop_inner, ctx, 0, "inner"}), &h, 1, &deep, 1);
    out[0] = rp_exp(rp_dropout(deep, 0.5, true, NULL));
}
typedef struct dropped {
    rp_body *body; /* checkpointed */
    rp_generator *generator;
    bool plain; /* without checkpoint: what the checkpoint must equal */
} dropped;
static void drop_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const dropped *d = ctx;
    rp_tensor *before = rp_mul(in[0], rp_dropout(in[0], 0.5, true, NULL)), *h;
    if (d->plain)
        d->body(d->generator, &before, n_in, &h, n_out);
    else
        rp_checkpoint(((rp_fn){d->body, d->generator, 0, "drop"}), &before, 1, &h, 1);
    out[0] = rp_mul(h, rp_dropout(h, 0.5, true, NULL));
}

typedef struct drawn { /* what a step gives, and where the generator is after it */
    rp_tensor *out, *grad, *next;
} drawn;
static void drawn_same(drawn a, drawn b) {
    same(a.out, b.out);
    same(a.grad, b.grad);
    same(a.next, b.next);
}
static void drop_seed(dropped *d, uint64_t seed) {
    OK(rp_manual_seed(seed));
    OK(rp_generator_seed(d->generator, seed + 100));
}

static drawn drop_eager(dropped *d, rp_tensor *values, uint64_t seed) {
    rp_tensor *x = leaf(values);
    drawn r;
    drop_seed(d, seed);
    drop_body(d, &x, 1, &r.out, 1);
    rp_tensor *loss = rp_sum(r.out, RP_NO_DIMS, false, RP_DTYPE_NONE);
    OK(rp_grad(&loss, 1, &x, 1, NULL, NULL, &r.grad));
    r.next = rp_rand(RP_DIMS(5), RP_F32, NULL);
    return r;
}

static void drop_whole(dropped *d, rp_tensor *values, drawn want[3]) { /* forward and backward in one capture */
    rp_tensor *x = leaf(values);
    drawn r;
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    drop_body(d, &x, 1, &r.out, 1);
    rp_tensor *loss = rp_sum(r.out, RP_NO_DIMS, false, RP_DTYPE_NONE);
    OK(rp_grad(&loss, 1, &x, 1, NULL, NULL, &r.grad));
    OK(rp_graph_end(g));
    for (uint64_t k = 0; k < 3; k++) {
        drop_seed(d, k);
        OK(rp_graph_replay(g));
        r.next = rp_rand(RP_DIMS(5), RP_F32, NULL);
        drawn_same(r, want[k]);
    }
    rp_graph_release(g);
}

/* The forward in one capture or in none, the backward in another or in none. */
static void drop_parts(dropped *d, rp_tensor *values, drawn want[3], bool forward, bool backward) {
    rp_tensor *x = leaf(values);
    drawn r;
    rp_graph *f = rp_graph_new(), *b = rp_graph_new();
    /* one stream for all: a backward runs where its forward ran (M43), which must not be the default stream in a capture */
    rp_stream *before = rp_current_stream(device), *s = rp_stream_new(device);
    OK(rp_synchronize(device));
    OK(rp_set_current_stream(s));
    drop_seed(d, 0);
    if (forward) OK(rp_graph_begin(f, device, RP_OPTIONS(rp_graph_options, .stream = s)));
    drop_body(d, &x, 1, &r.out, 1);
    rp_tensor *loss = rp_sum(r.out, RP_NO_DIMS, false, RP_DTYPE_NONE);
    if (forward) OK(rp_graph_end(f));
    rp_pool *pool = forward ? rp_graph_pool(f) : NULL;
    if (backward) OK(rp_graph_begin(b, device, RP_OPTIONS(rp_graph_options, .stream = s, .pool = pool)));
    if (forward && !backward) OK(rp_graph_replay(f));
    OK(rp_grad(&loss, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true), &r.grad));
    if (!backward) {
        r.next = rp_rand(RP_DIMS(5), RP_F32, NULL);
        drawn_same(r, want[0]);
    }
    if (backward) {
        OK(rp_graph_end(b));
        for (uint64_t k = 0; k < (forward ? 3 : 1); k++) {
            drop_seed(d, k);
            if (forward) OK(rp_graph_replay(f));
            for (int again = 0; again < 2; again++)
                OK(rp_graph_replay(b)); /* as often as asked: it draws nothing new */
            same(r.out, want[k].out);
            same(r.grad, want[k].grad);
            if (forward) same(rp_rand(RP_DIMS(5), RP_F32, NULL), want[k].next);
        }
    }
    if (forward && backward) { /* the backward's graph holds where the forward's finds its state */
        drop_seed(d, 1);
        OK(rp_graph_replay(f));
        rp_graph_release(f);
        f = NULL;
        OK(rp_graph_replay(b));
        same(r.grad, want[1].grad);
    }
    rp_graph_release(f);
    rp_graph_release(b);
    OK(rp_synchronize(device));
    OK(rp_set_current_stream(before));
    rp_stream_release(s);
}

static void drop_graphed(dropped *d, rp_tensor *values, drawn want[3]) {
    rp_tensor *x = leaf(values);
    rp_compiled *f;
    rp_tensor *sample = rp_rand(RP_DIMS(6, 7), RP_F32, NULL);
    OK(rp_set_requires_grad(sample, true));
    rp_graphed_callable c = {.fn = {drop_body, d, sizeof *d, "drop"}, .args = &sample, .n_args = 1, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    for (uint64_t k = 0; k < 3; k++) {
        drawn r;
        drop_seed(d, k);
        OK(rp_call(f, &x, 1, &r.out, 1));
        rp_tensor *loss = rp_sum(r.out, RP_NO_DIMS, false, RP_DTYPE_NONE);
        OK(rp_grad(&loss, 1, &x, 1, NULL, NULL, &r.grad));
        r.next = rp_rand(RP_DIMS(5), RP_F32, NULL);
        drawn_same(r, want[k]);
    }
    rp_compiled_release(f);
}

static void test_checkpoint_random(void **state) { /* R8 */
    (void)state;
    rp_body *const bodies[] = {drop_inner, drop_nested};
    for (int k = 0; k < 4; k++) {
        rp_generator *own = k % 2 ? rp_generator_new(device, 5) : rp_default_generator(device);
        dropped d;
        memset(&d, 0, sizeof d);
        d.body = bodies[k / 2];
        d.generator = own;
        rp_tensor *x = rp_add_scalar(rp_rand(RP_DIMS(6, 7), RP_F32, NULL), rp_f64(0.5));
        drawn want[3];
        d.plain = true;
        for (uint64_t seed = 0; seed < 3; seed++) want[seed] = drop_eager(&d, x, seed);
        d.plain = false;
        for (uint64_t seed = 0; seed < 3; seed++) drawn_same(drop_eager(&d, x, seed), want[seed]);
        drop_whole(&d, x, want);
        drop_graphed(&d, x, want);
        drop_parts(&d, x, want, true, true);
        drop_parts(&d, x, want, false, true);
        drop_parts(&d, x, want, true, false);
        if (k % 2) rp_generator_release(own);
    }
}

/* Eager backwards of a captured forward: each is of the last replay, also for what a checkpoint has recomputed before. */
static size_t checkpoint_runs;
static void counted_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    checkpoint_runs++;
    drop_inner(ctx, in, n_in, out, n_out);
}
static void test_checkpoint_replayed(void **state) {
    (void)state;
    for (int nested = 0; nested < 2; nested++) {
        dropped d;
        memset(&d, 0, sizeof d);
        d.body = nested ? drop_nested : counted_body;
        d.generator = rp_default_generator(device);
        rp_stream *before = rp_current_stream(device), *s = rp_stream_new(device);
        OK(rp_synchronize(device));
        OK(rp_set_current_stream(s));
        rp_tensor *values = rp_add_scalar(rp_rand(RP_DIMS(6, 7), RP_F32, NULL), rp_f64(0.5)), *x = leaf(values), *y,
                  *grad;
        drawn want[3];
        for (uint64_t k = 0; k < 3; k++) want[k] = drop_eager(&d, values, k);
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .stream = s)));
        drop_body(&d, &x, 1, &y, 1);
        rp_tensor *loss = rp_sum(y, RP_NO_DIMS, false, RP_DTYPE_NONE);
        OK(rp_graph_end(g));
        const rp_backward_options *keep = RP_OPTIONS(rp_backward_options, .retain_graph = true);
        checkpoint_runs = 0;
        for (uint64_t k = 0; k < 3; k++) {
            drop_seed(&d, k);
            OK(rp_graph_replay(g));
            same(y, want[k].out);
            for (int twice = 0; twice < 2; twice++) {
                OK(rp_grad(&loss, 1, &x, 1, NULL, keep, &grad));
                same(grad, want[k].grad);
            }
        }
        if (!nested)
            assert_int_equal(checkpoint_runs, 3); /* once a replay: a second backward finds what the first has made */
        /* a backward that is captured recomputes in its graph, whatever lies there */
        rp_graph *b = rp_graph_new();
        OK(rp_graph_begin(b, device, RP_OPTIONS(rp_graph_options, .stream = s, .pool = rp_graph_pool(g))));
        OK(rp_grad(&loss, 1, &x, 1, NULL, keep, &grad));
        OK(rp_graph_end(b));
        for (uint64_t k = 0; k < 3; k++) {
            drop_seed(&d, k);
            OK(rp_graph_replay(g));
            OK(rp_graph_replay(b));
            same(grad, want[k].grad);
        }
        /* and one that is eager again does not take what only the graph makes */
        drop_seed(&d, 1);
        OK(rp_graph_replay(g));
        OK(rp_grad(&loss, 1, &x, 1, NULL, keep, &grad));
        same(grad, want[1].grad);
        /* what was saved outside and is overwritten is an error */
        bool on = rp_set_grad_enabled(false);
        (void)rp_mul_scalar_(x, rp_f64(2));
        (void)rp_set_grad_enabled(on);
        OK(rp_graph_replay(g));
        FAILS(RP_ERROR_VERSION, "mul_", rp_grad(&loss, 1, &x, 1, NULL, keep, &grad));
        rp_graph_release(g);
        rp_graph_release(b);
        OK(rp_synchronize(device));
        OK(rp_set_current_stream(before));
        rp_stream_release(s);
    }
}

static void cut_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    out[0] = rp_detach(rp_mul(in[0], *(rp_tensor **)ctx)); /* no gradient reaches the parameter */
}

static void
test_graphed_no_gradient(void **state) { /* M25: no output requires a gradient, so there is no backward graph */
    (void)state;
    rp_tensor *w = leaf(rp_rand(RP_DIMS(5), RP_F32, NULL)), *x = rp_rand(RP_DIMS(5), RP_F32, NULL), *out;
    rp_graphed_callable c[2] = {
        {.fn = {cut_body, &w, sizeof w, "cut"}, .args = &x, .n_args = 1, .params = &w, .n_params = 1, .n_out = 1},
        {.fn = {square_body, NULL, 0, "square"}, .args = &x, .n_args = 1, .n_out = 1}}; /* without parameters */
    for (int k = 0; k < 2; k++) {
        rp_compiled *f;
        OK(rp_make_graphed_callables(&c[k], 1, NULL, &f));
        OK(rp_call(f, &x, 1, &out, 1));
        same(out, rp_mul(x, k ? x : rp_detach(w)));
        assert_false(rp_requires_grad(out));
        FAILS(RP_ERROR_STATE, "does not require a gradient",
              rp_backward(rp_sum(out, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
        rp_tensor *both = rp_sum(rp_mul(out, w), RP_NO_DIMS, false, RP_DTYPE_NONE); /* gradients of others pass by */
        OK(rp_set_grad(w, NULL));
        OK(rp_backward(both, NULL, NULL));
        same(rp_grad_of(w), out);
        rp_compiled_release(f);
    }
}

static void two_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_exp(in[0]);
    out[1] = rp_sin(in[0]);
}

static void
test_graphed_missing_gradient(void **state) { /* M39: what no gradient reaches counts as zeros, at every call */
    (void)state;
    rp_tensor *sample = leaf(rp_rand(RP_DIMS(7), RP_F32, NULL)), *out[2];
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {two_body, NULL, 0, "two"}, .args = &sample, .n_args = 1, .n_out = 2};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    for (int used = 3; used >= 1; used--) { /* both first, so that something is left in the static gradients */
        rp_tensor *x = leaf(rp_rand(RP_DIMS(7), RP_F32, NULL)), *want = rp_zeros(RP_DIMS(7), RP_F32);
        OK(rp_call(f, &x, 1, out, 2));
        rp_tensor *loss = rp_zeros(RP_NO_DIMS, RP_F32);
        for (int k = 0; k < 2; k++)
            if (used >> k & 1) loss = rp_add(loss, rp_sum(out[k], RP_NO_DIMS, false, RP_DTYPE_NONE), rp_i64(1));
        if (used & 1) want = rp_add(want, rp_exp(x), rp_i64(1));
        if (used & 2) want = rp_add(want, rp_cos(x), rp_i64(1));
        OK(rp_backward(loss, NULL, NULL));
        same(rp_grad_of(x), rp_detach(want));
    }
    rp_compiled_release(f);
}

static void test_graphed_stream(void **state) { /* M43: the backward runs on the stream of the call */
    (void)state;
    rp_stream *before = rp_current_stream(device), *s = rp_stream_new(device);
    rp_tensor *sample = leaf(rp_rand(RP_DIMS(2000), RP_F32, NULL)), *x = leaf(rp_rand(RP_DIMS(2000), RP_F32, NULL));
    rp_tensor *y = leaf(rp_clone(rp_detach(x))), *out, *want;
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {busy_body, NULL, 0, "busy"}, .args = &sample, .n_args = 1, .n_out = 1};
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    OK(rp_synchronize(device));
    OK(rp_set_current_stream(s));
    OK(rp_call(f, &x, 1, &out, 1));
    OK(rp_set_current_stream(before));
    rp__edge edge;
    OK(rp__tape_edge_of(out, &edge));
    assert_ptr_equal(edge.node->stream, s);
    rp__tape_node_release(edge.node);
    rp_event *e = rp_event_new(device, false); /* what comes next reads the output here */
    OK(rp_event_record(e, s));
    OK(rp_stream_wait_event(before, e));
    OK(rp_backward(rp_sum(out, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL)); /* which orders the streams itself */
    busy_body(NULL, &y, 1, &want, 1);
    OK(rp_backward(rp_sum(want, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
    same(rp_grad_of(x), rp_grad_of(y));
    assert_ptr_equal(rp_current_stream(device), before);
    rp_event_release(e);
    rp_compiled_release(f);
    rp_stream_release(s);
}

static void test_graphed_eager_between(void **state) { /* M52: eager work has other memory */
    (void)state;
    rp_tensor *sample[2], *x = leaf(rp_rand(RP_DIMS(50, 40), RP_F32, NULL)), *y = leaf(rp_clone(rp_detach(x)));
    rp_compiled *f[2];
    rp_graphed_callable c[2];
    for (int k = 0; k < 2; k++) {
        sample[k] = leaf(rp_rand(RP_DIMS(50, 40), RP_F32, NULL));
        c[k] = (rp_graphed_callable){.fn = {busy_body, NULL, 0, "busy"}, .args = &sample[k], .n_args = 1, .n_out = 1};
    }
    OK(rp_make_graphed_callables(c, 2, NULL, f));
    rp_tensor *filled[3][20], *h, *out, *eh, *want;
    for (int round = 0; round < 3; round++) { /* before the first, between the two, before the backward */
        if (round == 1) OK(rp_call(f[0], &x, 1, &h, 1));
        if (round == 2) {
            rp_tensor *between = rp_sin(h);
            OK(rp_call(f[1], &between, 1, &out, 1));
        }
        for (int k = 0; k < 20; k++) filled[round][k] = rp_full(RP_DIMS(50, 40), rp_f64(round * 20 + k), RP_F32);
    }
    OK(rp_backward(rp_sum(out, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
    busy_body(NULL, &y, 1, &eh, 1);
    eh = rp_sin(eh);
    busy_body(NULL, &eh, 1, &want, 1);
    OK(rp_backward(rp_sum(want, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
    same(out, want);
    same(rp_grad_of(x), rp_grad_of(y));
    for (int round = 0; round < 3; round++)
        for (int k = 0; k < 20; k++) same(filled[round][k], rp_full(RP_DIMS(50, 40), rp_f64(round * 20 + k), RP_F32));
    rp_compiled_release(f[0]);
    rp_compiled_release(f[1]);
}

static void test_graphed_pool_life(void **state) { /* M53: the pool goes with the last graph and the last tensor */
    (void)state;
    uint64_t before = pool_bytes();
    rp_tensor *x = rp_rand(RP_DIMS(700), RP_F32, NULL), *out;
    rp_compiled *f;
    rp_graphed_callable c = {.fn = {square_body, NULL, 0, "square"}, .args = &x, .n_args = 1, .n_out = 1};
    rp_scope scope = rp_scope_begin();
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    OK(rp_call(f, &x, 1, &out, 1));
    rp_retain(out);
    OK(rp_scope_end(scope, NULL, 0));
    uint64_t with = pool_bytes();
    assert_true(with > before);
    rp_compiled_release(f);
    assert_int_equal(pool_bytes(), with);
    for (int k = 0; k < 20; k++) (void)rp_full(RP_DIMS(700), rp_f64(9), RP_F32);
    same(out, rp_mul(x, x)); /* nobody else gets its memory */
    rp_release(out);
    assert_int_equal(pool_bytes(), before);
}

static void test_graphed_version(void **state) { /* an argument changed between forward and backward */
    (void)state;
    mlp m;
    mlp_make(&m);
    rp_tensor *sample = rp_rand(RP_DIMS(4, 10), RP_F32, NULL), *x = rp_rand(RP_DIMS(4, 10), RP_F32, NULL), *out;
    rp_compiled *f = graph_mlp(&m, sample);
    OK(rp_call(f, &x, 1, &out, 1));
    rp_mul_scalar_(x, rp_f64(2));
    FAILS(RP_ERROR_VERSION, "modified in place after the call",
          rp_backward(rp_sum(out, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL));
    rp_compiled_release(f);
    mlp_free(&m);
}

/* Two callables in a pool that is given, with recomputed dropout: made, called, differentiated, released. */
static rp_status make_and_step(rp_tensor *x) {
    rp_status status = RP_OK;
    rp_scope scope = rp_scope_begin();
    rp_pool *pool = rp_pool_new(device);
    rp_compiled *f[2] = {NULL, NULL};
    dropped d;
    memset(&d, 0, sizeof d);
    d.body = drop_inner;
    rp_tensor *a = rp_detach(x), *b = rp_clone(x), *h, *out;
    if (!rp_failed()) status = rp_set_requires_grad(b, true);
    rp_graphed_callable c[2] = {{.fn = {square_body, NULL, 0, "square"}, .args = &a, .n_args = 1, .n_out = 1},
                                {.fn = {drop_body, &d, sizeof d, "drop"}, .args = &b, .n_args = 1, .n_out = 1}};
    if (!rp_failed())
        status = rp_make_graphed_callables(c, 2, RP_OPTIONS(rp_graphed_options, .pool = pool, .warmup = 1), f);
    if (!rp_failed()) status = rp_call(f[0], &a, 1, &h, 1);
    if (!rp_failed()) {
        rp_tensor *in = rp_clone(rp_detach(h));
        if (!rp_failed()) (void)rp_set_requires_grad(in, true);
        if (!rp_failed()) (void)rp_call(f[1], &in, 1, &out, 1);
        if (!rp_failed()) (void)rp_backward(rp_sum(out, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL);
    }
    for (int k = 0; k < 2; k++) rp_compiled_release(f[k]);
    rp_pool_release(pool);
    (void)rp_scope_end(scope, NULL, 0);
    (void)status;
    return rp_error_take();
}

static void test_graphed_out_of_memory(void **state) { /* the n-th allocation fails: an error, nothing left behind */
    (void)state;
    if (device.type != RP_DEVICE_CPU) return; /* drivers allocate by themselves: test_cuda_faults.c */
    rp_stream *before = rp_current_stream(device);
    rp_tensor *x = rp_rand(RP_DIMS(6, 7), RP_F32, NULL);
    for (int warm = 0; warm < 2; warm++) assert_int_equal(make_and_step(x), RP_OK);
    uint64_t live = rp__alloc_live();
    bool done = false;
    for (uint64_t n = 1; !done; n += n < 200 ? 1 : 7) {
        uint64_t from = rp__alloc_fail_at(n);
        rp_status status = make_and_step(x);
        uint64_t to = rp__alloc_fail_at(0);
        done = to - from < n;
        if (status != RP_OK && (done || status != RP_ERROR_OUT_OF_MEMORY))
            fail_msg("allocation %llu: status %d", (unsigned long long)n, (int)status);
        assert_ptr_equal(rp_current_stream(device), before);
        assert_false(rp_is_capturing(device));
    }
    assert_int_equal(make_and_step(x), RP_OK);
    assert_in_range(rp__alloc_live(), 0, live + 8); /* caches may have lost an entry, or found room for one */
}

static void test_no_leak(void **state) { /* 100 captures */
    (void)state;
    uint64_t before = 0;
    for (int k = 0; k < 100; k++) {
        rp_scope scope = rp_scope_begin();
        mlp m;
        mlp_make(&m);
        rp_tensor *x = rp_rand(RP_DIMS(4, 10), RP_F32, NULL), *out;
        rp_compiled *f = graph_mlp(&m, x);
        OK(rp_call(f, &x, 1, &out, 1));
        rp_compiled_release(f);
        mlp_free(&m);
        OK(rp_scope_end(scope, NULL, 0));
        OK(rp_synchronize(device));
        rp_memory_stats stats = {.struct_size = sizeof stats};
        OK(rp_memory_stats_get(device, &stats));
        if (k == 20) before = stats.reserved + rp__alloc_live();
        if (k > 20) assert_true(stats.reserved + rp__alloc_live() <= before + 64);
    }
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
        cmocka_unit_test_setup_teardown(test_raw_bad_index, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_training, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_errors, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_validation, begin, end),
        cmocka_unit_test_setup_teardown(test_raw_pending, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_several, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_shared_parameters, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_ctx, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_stale_place, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_order, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_one_pool, begin, end),
        cmocka_unit_test_setup_teardown(test_checkpoint_random, begin, end),
        cmocka_unit_test_setup_teardown(test_checkpoint_replayed, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_no_gradient, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_missing_gradient, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_stream, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_eager_between, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_pool_life, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_version, begin, end),
        cmocka_unit_test_setup_teardown(test_graphed_out_of_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_no_leak, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
