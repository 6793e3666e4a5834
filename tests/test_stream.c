/* Streams, events, captures and device graphs of the CPU: order that is promised holds, order that is not promised breaks.
   ctest: labels=threads */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "device/allocator.h"
#include "device/capture.h"
#include "device/error_record.h"
#include "tensor/tensor.h"

/* words: address, factor, addend. x = x * factor + addend for each item: order matters. */
static void affine(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    (void)kernel;
    int64_t *x = (int64_t *)(uintptr_t)words[0];
    for (int64_t i = begin; i < end; i++) x[i] = x[i] * (int64_t)words[1] + (int64_t)words[2];
}
static rp__kernel affine_kernel = {.kind = RP__KERNEL_CPU, .name = "affine", .cpu = affine};

/* words: destination, source. */
static void copy(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    (void)kernel;
    memcpy((int64_t *)(uintptr_t)words[0] + begin, (int64_t *)(uintptr_t)words[1] + begin, (size_t)(end - begin) * 8);
}
static rp__kernel copy_kernel = {.kind = RP__KERNEL_CPU, .name = "copy", .cpu = copy};

static rp__launch launch_of(rp__kernel *k, const uint64_t *words, uint32_t n, const char *op) {
    return (rp__launch){
        .kernel = k, .words = words, .n_words = n, .items = 1, .grain = 1, .op = op, .site = "t.c:1", .barrier = true};
}

static rp_status run_affine(rp_stream *s, int64_t *x, int64_t factor, int64_t addend) {
    uint64_t words[] = {(uint64_t)(uintptr_t)x, (uint64_t)factor, (uint64_t)addend};
    rp__launch l = launch_of(&affine_kernel, words, 3, "affine");
    return rp__launch_on(s, &l);
}

static rp_status run_copy(rp_stream *s, int64_t *to, int64_t *from) {
    uint64_t words[] = {(uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from};
    rp__launch l = launch_of(&copy_kernel, words, 2, "copy");
    return rp__launch_on(s, &l);
}

static void a_stream_keeps_its_order_and_waits(void **state) {
    (void)state;
    int64_t x = 1;
    rp_stream *s = rp_stream_new(rp_cpu());
    for (int i = 0; i < 20; i++) {
        run_affine(s, &x, 2, 1);
        if (i == 9) assert_int_equal(x, 1); /* nothing ran yet */
    }
    assert_int_equal(x, 1);
    assert_int_equal(rp_stream_synchronize(s), RP_OK);
    assert_int_equal(x, (1 << 21) - 1);
    assert_true(rp_stream_query(s));
    run_affine(s, &x, 0, 5);
    while (!rp_stream_query(s)) continue; /* polling ends */
    assert_int_equal(x, 5);
    run_affine(s, &x, 0, 6);
    assert_int_equal(rp_synchronize(rp_cpu()), RP_OK);
    assert_int_equal(x, 6);
    run_affine(s, &x, 0, 7);
    rp_stream_release(s); /* finishes its work */
    assert_int_equal(x, 7);
    run_affine(rp_current_stream(rp_cpu()), &x, 0, 8); /* the default stream runs inline */
    assert_int_equal(x, 8);
}

/* Producer on one stream, consumer on another. With an event, or behind all of the stream, always right; with neither wrong in
   some order. */
enum order { NO_ORDER, BY_EVENT, BY_STREAM };
static int wrong_results(enum order order) {
    int wrong = 0;
    for (int round = 0; round < 40; round++) {
        int64_t x = 0, y = 0, z = 0;
        rp_stream *a = rp_stream_new(rp_cpu()), *b = rp_stream_new(rp_cpu());
        rp_event *e = rp_event_new(rp_cpu(), false);
        run_affine(a, &z, 1, 1);
        run_affine(a, &x, 0, 42);
        rp_event_record(e, a);
        run_affine(a, &z, 1, 1);
        run_affine(b, &z, 1, 0);
        if (order == BY_EVENT) assert_int_equal(rp_stream_wait_event(b, e), RP_OK);
        if (order == BY_STREAM) assert_int_equal(rp_stream_wait_stream(b, a), RP_OK);
        run_copy(b, &y, &x);
        rp_stream_synchronize(b);
        wrong += y != 42;
        rp_synchronize(rp_cpu());
        assert_int_equal(z, 2);
        rp_event_release(e);
        rp_stream_release(a);
        rp_stream_release(b);
    }
    return wrong;
}

static void a_missing_event_shows(void **state) {
    (void)state;
    assert_int_equal(wrong_results(BY_EVENT), 0);
    assert_int_equal(wrong_results(BY_STREAM), 0);
    int wrong = wrong_results(NO_ORDER);
    assert_true(wrong > 0);
    assert_true(wrong < 40); /* the order is drawn, not fixed */
}

static void events_answer(void **state) {
    (void)state;
    int64_t x = 0;
    rp_stream *s = rp_stream_new(rp_cpu());
    rp_event *a = rp_event_new(rp_cpu(), true), *b = rp_event_new(rp_cpu(), true),
             *plain = rp_event_new(rp_cpu(), false);
    assert_true(rp_event_query(a)); /* never recorded: complete, as CUDA says */
    assert_int_equal(rp_event_synchronize(a), RP_OK);
    assert_true(rp_event_elapsed_ms(a, b) < 0);
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    rp_event_record(a, s);
    run_affine(s, &x, 1, 1);
    rp_event_record(b, s);
    run_affine(s, &x, 1, 1);
    assert_true(rp_event_elapsed_ms(a, b) < 0);
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    assert_int_equal(rp_event_synchronize(b), RP_OK);
    assert_true(x >= 1);
    assert_true(rp_event_elapsed_ms(a, b) >= 0);
    rp_event_record(plain, s);
    assert_true(rp_event_elapsed_ms(a, plain) < 0);
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    while (!rp_event_query(plain)) continue;
    assert_int_equal(x, 2);
    /* The default stream runs inline, so waiting makes the other stream run. */
    run_affine(s, &x, 1, 1);
    rp_event_record(plain, s);
    rp_stream_wait_event(rp_current_stream(rp_cpu()), plain);
    assert_int_equal(x, 3);
    /* A wait means the recording at the time of the call. */
    rp_stream *t = rp_stream_new(rp_cpu());
    int64_t y = 0;
    run_affine(s, &x, 0, 10);
    rp_event_record(plain, s);
    rp_stream_wait_event(t, plain);
    run_copy(t, &y, &x);
    rp_event_record(plain, t);
    rp_stream_synchronize(t);
    assert_int_equal(y, 10);
    rp_event_release(a);
    rp_event_release(b);
    rp_event_release(plain);
    rp_stream_release(s);
    rp_stream_release(t);
    assert_int_equal(rp_event_record(NULL, s), RP_ERROR_INVALID_ARGUMENT);
    rp_error_take();
    assert_int_equal(rp_stream_synchronize(NULL), RP_ERROR_INVALID_ARGUMENT);
    rp_error_take();
}

static void streams_belong_to_threads(void **state) {
    (void)state;
    rp_stream *s = rp_stream_new(rp_cpu()), *normal = rp_current_stream(rp_cpu());
    assert_true(normal->is_default);
    assert_int_equal(rp_set_current_stream(s), RP_OK);
    assert_ptr_equal(rp_current_stream(rp_cpu()), s);
    rp_scope scope = rp_scope_begin();
    float x[] = {1, 2}, y[2];
    rp_tensor *t = rp_from_data(x, RP_DIMS(2), RP_F32);
    x[0] = 9; /* the host may change its bytes at once */
    assert_ptr_equal(t->storage->block->stream, s);
    assert_int_equal(rp_to_host(t, y, sizeof y), RP_OK);
    assert_true(y[0] == 1 && y[1] == 2);
    assert_int_equal(rp__cpu_device.ops->fill(&rp__cpu_device, s, rp_data(t), 0, 8), RP_OK);
    assert_int_equal(rp_to_host(t, y, sizeof y), RP_OK);
    assert_true(y[0] == 0 && y[1] == 0);
    rp_scope_end(scope, NULL, 0);
    rp_stream_release(s); /* still current */
    assert_int_equal(rp_set_current_stream(normal), RP_OK);
    assert_ptr_equal(rp_current_stream(rp_cpu()), normal);
}

/* ---- device graphs */

static const rp__device_ops *ops(void) { return rp_current_stream(rp_cpu())->device->ops; }

static void graphs_run_in_an_order_of_their_edges(void **state) {
    (void)state;
    enum { N = 12 };
    int64_t sum;
    bool broke = false;
    for (int edges = 1; edges >= 0; edges--) {
        for (int round = 0; round < 20; round++) {
            rp__devgraph *g;
            uint32_t node, deps[1];
            assert_int_equal(ops()->graph_new(&rp__cpu_device, &g), RP_OK);
            assert_int_equal(ops()->graph_launch(g, rp_current_stream(rp_cpu())), RP_ERROR_STATE);
            rp_error_take();
            for (uint32_t i = 0; i < N; i++) {
                uint64_t words[] = {(uint64_t)(uintptr_t)&sum, 3, i};
                rp__launch l = launch_of(&affine_kernel, words, 3, "affine");
                assert_int_equal(ops()->graph_add(g, &l, deps, edges && i, &node), RP_OK);
                assert_int_equal(node, i);
                deps[0] = node;
            }
            assert_int_equal(ops()->graph_instantiate(g, NULL), RP_OK);
            assert_int_equal(ops()->graph_nodes(g), N);
            assert_string_equal(ops()->graph_node(g, 3)->op, "affine");
            assert_null(ops()->graph_node(g, N));
            int64_t want = 1;
            for (int i = 0; i < N; i++) want = want * 3 + i;
            for (int replay = 0; replay < 2; replay++) {
                sum = 1;
                assert_int_equal(ops()->graph_launch(g, rp_current_stream(rp_cpu())), RP_OK);
                if (edges)
                    assert_int_equal(sum, want);
                else
                    broke = broke || sum != want;
            }
            ops()->graph_free(g);
        }
    }
    assert_true(broke); /* without edges some order is another one */
}

static void graphs_take_new_words(void **state) {
    (void)state;
    int64_t x = 0, y = 0;
    rp_stream *s = rp_stream_new(rp_cpu());
    rp__devgraph *g;
    uint32_t node;
    ops()->graph_new(&rp__cpu_device, &g);
    uint64_t words[] = {(uint64_t)(uintptr_t)&x, 1, 1};
    rp__launch l = launch_of(&affine_kernel, words, 3, "affine");
    ops()->graph_add(g, &l, NULL, 0, &node);
    uint32_t later = 5;
    assert_int_equal(ops()->graph_add(g, &l, &later, 1, &node), RP_ERROR_INVALID_ARGUMENT);
    rp_error_take();
    ops()->graph_instantiate(g, s);
    assert_int_equal(ops()->graph_add(g, &l, NULL, 0, &node), RP_ERROR_STATE);
    rp_error_take();
    ops()->graph_launch(g, s);
    assert_int_equal(x, 0); /* queued */
    words[0] = (uint64_t)(uintptr_t)&y;
    assert_int_equal(ops()->graph_set_words(g, 0, words), RP_OK);
    assert_int_equal(x, 1); /* what was launched before used the old words */
    ops()->graph_launch(g, s);
    ops()->graph_launch(g, s);
    rp_stream_synchronize(s);
    assert_true(x == 1 && y == 2);
    assert_int_equal(ops()->graph_set_words(g, 7, words), RP_ERROR_INVALID_ARGUMENT);
    rp_error_take();
    ops()->graph_launch(g, s);
    ops()->graph_free(g); /* after what is queued */
    assert_int_equal(y, 3);
    rp_stream_release(s);
}

/* ---- capture */

typedef struct captured {
    rp__devgraph *graph;
    rp__capture_random *random;
    size_t n;
} captured;

static rp_status end(rp_stream *s, captured *c) { return rp__capture_end(s, &c->graph, &c->random, &c->n); }

static void captures_record_and_replay(void **state) {
    (void)state;
    int64_t x = 1, y = 0;
    rp_stream *s = rp_stream_new(rp_cpu()), *side = rp_stream_new(rp_cpu());
    rp_pool *pool = rp_pool_new(rp_cpu());
    rp_event *fork = rp_event_new(rp_cpu(), false), *join = rp_event_new(rp_cpu(), false);
    captured c;
    for (int round = 0; round < 10; round++) {
        x = 1, y = 0;
        assert_int_equal(rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL), RP_OK);
        assert_true(rp__stream_capturing(s) && rp__captures_active());
        rp__block *b;
        assert_int_equal(rp__block_alloc(&rp__cpu_device, s, 100, &b), RP_OK);
        assert_ptr_equal(b->pool, pool);
        rp__block_free(&rp__cpu_device, b);
        run_affine(s, &x, 10, 1);
        rp_event_record(fork, s);
        assert_int_equal(rp_stream_wait_event(side, fork), RP_OK);
        assert_true(rp__stream_capturing(side));
        run_affine(side, &y, 0, 7);
        run_affine(s, &x, 10, 2);
        rp_event_record(join, side);
        assert_int_equal(rp_stream_wait_event(s, join), RP_OK);
        run_affine(s, &y, 2, 0);
        assert_int_equal(x, 1); /* nothing ran */
        assert_int_equal(end(s, &c), RP_OK);
        assert_false(rp__stream_capturing(side) || rp__captures_active());
        assert_int_equal(ops()->graph_nodes(c.graph), 4);
        assert_int_equal(ops()->graph_instantiate(c.graph, s), RP_OK);
        for (int replay = 0; replay < 3; replay++) {
            x = 1, y = 0;
            assert_int_equal(ops()->graph_launch(c.graph, replay == 1 ? s : rp_current_stream(rp_cpu())), RP_OK);
            rp_stream_synchronize(s);
            assert_int_equal(x, 112);
            assert_int_equal(y, 14);
        }
        ops()->graph_free(c.graph);
        rp__capture_random_free(c.random, c.n);
    }
    rp_event_release(fork);
    rp_event_release(join);
    rp_pool_release(pool);
    rp_stream_release(s);
    rp_stream_release(side);
}

static void captures_refuse(void **state) {
    (void)state;
    int64_t x = 0;
    captured c;
    rp_stream *s = rp_stream_new(rp_cpu()), *other = rp_stream_new(rp_cpu());
    rp_pool *pool = rp_pool_new(rp_cpu());
    rp_event *e = rp_event_new(rp_cpu(), false), *old = rp_event_new(rp_cpu(), false);
    run_affine(other, &x, 1, 1);
    rp_event_record(old, other);
    assert_int_equal(rp__capture_begin(rp_current_stream(rp_cpu()), pool, RP_CAPTURE_RELAXED), RP_ERROR_CAPTURE);
    rp_error_take();
    assert_int_equal(end(s, &c), RP_ERROR_STATE);
    rp_error_take();

    /* A host read: names op and site. */
    assert_int_equal(rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL), RP_OK);
    assert_int_equal(rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL), RP_ERROR_STATE);
    rp_error_take();
    rp__site_frame outer = rp__site_push("loss.c:12", "item");
    assert_int_equal(rp_stream_synchronize(s), RP_ERROR_CAPTURE);
    rp__site_pop(outer);
    rp_error_take();
    assert_int_equal(end(s, &c), RP_ERROR_CAPTURE);
    assert_string_equal(rp_error_message(), "the capture is invalid: synchronising a stream in item at loss.c:12");
    rp_error_take();
    assert_null(c.graph);
    assert_false(rp__stream_capturing(s));

    /* A stream that was not joined back. */
    rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL);
    run_affine(s, &x, 1, 1);
    rp_event_record(e, s);
    rp_stream_wait_event(other, e);
    run_affine(other, &x, 1, 1);
    assert_int_equal(end(s, &c), RP_ERROR_CAPTURE);
    assert_non_null(strstr(rp_error_message(), "not joined back"));
    assert_non_null(strstr(rp_error_message(), "affine launched at t.c:1"));
    rp_error_take();
    assert_false(rp__stream_capturing(other));

    /* A stream that joined and did nothing need not come back. */
    rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL);
    run_affine(s, &x, 1, 1);
    rp_event_record(e, s);
    rp_stream_wait_event(other, e);
    run_affine(s, &x, 1, 1);
    assert_int_equal(end(s, &c), RP_OK);
    ops()->graph_free(c.graph);

    /* Events from outside, and of captures that ended. */
    assert_int_equal(rp_stream_wait_event(other, e), RP_ERROR_CAPTURE);
    rp_error_take();
    assert_false(rp_event_query(e));
    rp_error_take();
    rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL);
    assert_int_equal(rp_stream_wait_event(s, old), RP_ERROR_CAPTURE);
    rp_error_take();
    assert_int_equal(end(s, &c), RP_ERROR_CAPTURE);
    rp_error_take();

    rp_event_release(e);
    rp_event_release(old);
    rp_pool_release(pool);
    rp_stream_release(s);
    rp_stream_release(other);
}

static void *synchronise_elsewhere(void *status) {
    *(rp_status *)status = rp_synchronize(rp_cpu());
    rp_error_take();
    return NULL;
}

static void modes_differ_for_others(void **state) {
    (void)state;
    static const struct {
        rp_capture_mode mode;
        rp_status same_thread, other_thread;
    } rows[] = {
        {RP_CAPTURE_THREAD_LOCAL, RP_ERROR_CAPTURE, RP_OK},
        {RP_CAPTURE_GLOBAL, RP_ERROR_CAPTURE, RP_ERROR_CAPTURE},
        {RP_CAPTURE_RELAXED, RP_OK, RP_OK},
    };
    for (size_t i = 0; i < 3; i++) {
        for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
            rp_stream *s = rp_stream_new(rp_cpu());
            rp_pool *pool = rp_pool_new(rp_cpu());
            captured c;
            rp_status want = elsewhere ? rows[i].other_thread : rows[i].same_thread, got = RP_OK;
            assert_int_equal(rp__capture_begin(s, pool, rows[i].mode), RP_OK);
            if (elsewhere) {
                pthread_t thread;
                pthread_create(&thread, NULL, synchronise_elsewhere, &got);
                pthread_join(thread, NULL);
            } else {
                synchronise_elsewhere(&got);
            }
            assert_int_equal(got, want);
            assert_int_equal(end(s, &c), want);
            rp_error_take();
            if (c.graph) ops()->graph_free(c.graph);
            rp_pool_release(pool);
            rp_stream_release(s);
        }
    }
}

static void graphs_can_be_captured(void **state) {
    (void)state;
    int64_t x = 1;
    rp_stream *s = rp_stream_new(rp_cpu());
    rp_pool *pool = rp_pool_new(rp_cpu());
    captured inner, outer;
    rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL);
    run_affine(s, &x, 2, 1);
    run_affine(s, &x, 3, 0);
    assert_int_equal(end(s, &inner), RP_OK);
    ops()->graph_instantiate(inner.graph, s);
    rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL);
    ops()->graph_launch(inner.graph, s);
    run_affine(s, &x, 1, 100);
    assert_int_equal(end(s, &outer), RP_OK);
    ops()->graph_free(inner.graph);
    assert_int_equal(ops()->graph_nodes(outer.graph), 3);
    ops()->graph_instantiate(outer.graph, s);
    ops()->graph_launch(outer.graph, rp_current_stream(rp_cpu()));
    assert_int_equal(x, 109);
    ops()->graph_free(outer.graph);
    rp_pool_release(pool);
    rp_stream_release(s);
}

/* ---- records, conflicts, errors of kernels */

static void conflicts_come_from_slots(void **state) {
    (void)state;
    rp__storage p = {0}, q = {0};
    rp__slot read = {.access = RP__READ, .storage = &p, .buffer = -1, .begin = 0, .end = 8};
    rp__slot write = {.access = RP__WRITE, .storage = &p, .buffer = -1, .begin = 4, .end = 12};
    rp__slot behind = {.access = RP__WRITE, .storage = &p, .buffer = -1, .begin = 8, .end = 16};
    rp__slot elsewhere = {.access = RP__WRITE, .storage = &q, .buffer = -1, .begin = 0, .end = 16};
    rp__slot planned = {.access = RP__WRITE, .buffer = 3, .begin = 0, .end = 8};
#define LAUNCH(slot) (&(rp__launch){.slots = &(slot), .n_slots = 1})
    assert_true(rp__launch_conflict(LAUNCH(read), LAUNCH(write)));
    assert_false(rp__launch_conflict(LAUNCH(read), LAUNCH(read)));
    assert_false(rp__launch_conflict(LAUNCH(read), LAUNCH(behind)));
    assert_false(rp__launch_conflict(LAUNCH(read), LAUNCH(elsewhere)));
    assert_true(rp__launch_conflict(LAUNCH(planned), LAUNCH(planned)));
    assert_false(rp__launch_conflict(LAUNCH(planned), LAUNCH(read)));
    assert_true(rp__launch_conflict(&(rp__launch){.barrier = true}, LAUNCH(read)));
    /* Wrapped memory: storages of their own over bytes that they share. */
    char bytes[32];
    p = (rp__storage){.data = bytes, .bytes = 16, .foreign = true};
    q = (rp__storage){.data = bytes + 8, .bytes = 16, .foreign = true};
    assert_false(rp__launch_conflict(LAUNCH(read), LAUNCH(elsewhere))); /* the first 8 bytes of p */
    assert_true(rp__launch_conflict(LAUNCH(write), LAUNCH(elsewhere)));
    q.foreign = false;
    assert_true(rp__launch_conflict(LAUNCH(write), LAUNCH(elsewhere)));
    p.foreign = false; /* memory of ours lies under one storage alone */
    assert_false(rp__launch_conflict(LAUNCH(write), LAUNCH(elsewhere)));
}

static void bad_indices_are_reported_when_waited_for(void **state) {
    (void)state;
    rp__device *d = rp_current_stream(rp_cpu())->device;
    static const char *op = "gather", *site = "model.c:31";
    uint64_t tag = rp__error_tag(op, site);
    assert_int_equal(rp__error_tag(op, site), tag);
    assert_int_not_equal(rp__error_tag(op, "model.c:32"), tag);
    rp__error_record_put(d->errors, tag, 9, 5);
    rp__error_record_put(d->errors, tag, 77, 5); /* the first is kept */
    assert_int_equal(rp_synchronize(rp_cpu()), RP_ERROR_INDEX);
    assert_string_equal(rp_error_message(), "gather: index 9 is out of bounds for a dimension of size 5 at model.c:31");
    rp_error_take();
    assert_int_equal(rp_synchronize(rp_cpu()), RP_OK);
    rp__error_record_put_division(d->errors, tag);
    rp_scope scope = rp_scope_begin();
    rp_tensor *t = rp_from_data(&(float){1}, RP_DIMS(1), RP_F32);
    rp_item(t);
    assert_string_equal(rp_error_message(), "gather: integer division by zero at model.c:31");
    rp_error_take();
    rp_scope_end(scope, NULL, 0);
}

typedef struct listener {
    rp__launch_recorder recorder;
    int n;
} listener;
static rp_status listen(rp__launch_recorder *self, rp_stream *s, const rp__launch *l) {
    (void)s, (void)l;
    ((listener *)self)->n++;
    return RP_OK;
}

static void a_recorder_takes_launches(void **state) {
    (void)state;
    int64_t x = 0;
    listener r = {{listen}, 0};
    assert_null(rp__launch_recorder_set(&r.recorder));
    run_affine(rp_current_stream(rp_cpu()), &x, 1, 1);
    assert_ptr_equal(rp__launch_recorder_set(NULL), &r.recorder);
    assert_int_equal(x, 0);
    assert_int_equal(r.n, 1);
    run_affine(rp_current_stream(rp_cpu()), &x, 1, 1);
    assert_int_equal(x, 1);
}

/* ---- allocation failures */

static void scenario(int64_t *x) {
    rp_stream *s = rp_stream_new(rp_cpu()), *t = rp_stream_new(rp_cpu());
    rp_event *e = rp_event_new(rp_cpu(), false);
    rp_pool *pool = rp_pool_new(rp_cpu());
    captured c = {0};
    if (s->device && t->device && e->device && pool->device) {
        run_affine(s, x, 1, 1);
        rp_event_record(e, s);
        rp_stream_wait_event(t, e);
        rp__block *b;
        if (rp__block_alloc(&rp__cpu_device, s, 1000, &b) == RP_OK) {
            rp__block_used_by(b, t);
            rp__block_free(&rp__cpu_device, b);
        }
        rp__random_draw draw;
        if (rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL) == RP_OK) {
            run_affine(s, x, 1, 1);
            rp__random_reserve(rp_default_generator(rp_cpu()), s, 1, &draw);
            rp_event_record(e, s);
            rp_stream_wait_event(t, e);
            run_affine(t, x, 1, 1);
            rp_event_record(e, t);
            rp_stream_wait_event(s, e);
            if (rp__block_alloc(&rp__cpu_device, s, 5000, &b) == RP_OK) rp__block_free(&rp__cpu_device, b);
            end(s, &c);
        }
        if (c.graph && ops()->graph_instantiate(c.graph, s) == RP_OK) ops()->graph_launch(c.graph, t);
        rp_stream_synchronize(s);
        rp_stream_synchronize(t);
    }
    if (c.graph) ops()->graph_free(c.graph);
    rp__capture_random_free(c.random, c.n);
    rp_event_release(e);
    rp_pool_release(pool);
    rp_stream_release(s);
    rp_stream_release(t);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    int64_t x = 0;
    int failures = 0;
    scenario(&x);
    assert_int_equal(x, 3);
    rp_synchronize(rp_cpu());
    rp_empty_cache(rp_cpu());
    for (uint64_t n = 1; n < 120; n++) {
        rp_memory_stats before = {.struct_size = sizeof before}, after = before;
        rp_memory_stats_get(rp_cpu(), &before);
        uint64_t live = rp__alloc_live();
        x = 0;
        rp__alloc_fail_at(n);
        scenario(&x);
        rp__alloc_fail_at(0);
        failures += rp_failed();
        if (!rp_failed()) assert_int_equal(x, 3);
        rp_error_take();
        assert_false(rp__captures_active());
        rp_synchronize(rp_cpu());
        rp_empty_cache(rp_cpu());
        rp_memory_stats_get(rp_cpu(), &after);
        assert_int_equal(after.allocated, before.allocated);
        assert_int_equal(after.in_private_pools, 0);
        assert_true(rp__alloc_live() <= live + 8); /* the allocator's spare records only */
    }
    assert_true(failures > 25);
}

/* The address of a tensor is for reading: what the current stream holds is run first, but in a capture. */
static void data_is_there(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_stream *s = rp_stream_new(rp_cpu()), *before = rp_current_stream(rp_cpu());
    assert_int_equal(rp_set_current_stream(s), RP_OK);
    rp_tensor *x = rp_add_scalar(rp_ones(RP_DIMS(8)), rp_i64(1));
    const float *p = rp_data(x);
    assert_true(p[0] == 2 && p[7] == 2);
    rp_graph *g = rp_graph_new();
    assert_int_equal(rp_graph_begin(g, rp_cpu(), NULL), RP_OK);
    rp_tensor *y = rp_add_scalar(x, rp_i64(1));
    const float *q = rp_data(y);
    assert_int_equal(rp_graph_end(g), RP_OK);
    assert_int_equal(rp_graph_replay(g), RP_OK);
    assert_int_equal(rp_synchronize(rp_cpu()), RP_OK);
    assert_true(q[0] == 3 && q[7] == 3);
    rp_graph_release(g);
    assert_int_equal(rp_set_current_stream(before), RP_OK);
    rp_stream_release(s);
    rp_scope_end(scope, NULL, 0);
    assert_false(rp_failed());
}

/* ---- a kernel that waits for another thread, as one that takes a lock of the program's would */

static struct {
    atomic_bool runs, answered, late;
    rp_stream *stream;
    rp_event *event;
    int64_t x;
} meeting;

static void pause_a_little(void) { (void)nanosleep(&(struct timespec){0, 1000000}, NULL); }

static void wait_for_answer(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    (void)kernel, (void)words, (void)begin, (void)end;
    atomic_store(&meeting.runs, true);
    for (int k = 0; k < 10000 && !atomic_load(&meeting.answered); k++) pause_a_little();
    atomic_store(&meeting.late, !atomic_load(&meeting.answered));
}
static rp__kernel waiting_kernel = {.kind = RP__KERNEL_CPU, .name = "wait_for_answer", .cpu = wait_for_answer};

static rp__block *memory_that(rp_stream *uses) {
    rp__block *b = NULL;
    assert_int_equal(rp__block_alloc(&rp__cpu_device, rp__cpu_device.default_stream, 1 << 20, &b), RP_OK);
    assert_int_equal(rp__block_used_by(b, uses), RP_OK);
    return b;
}

/* Asks, allocates, frees, records and launches while the kernel runs, and answers it only then. */
static void *answer(void *ok) {
    for (int k = 0; k < 10000 && !atomic_load(&meeting.runs); k++) pause_a_little();
    rp__block *b = NULL;
    bool fine = !rp_stream_query(meeting.stream) && !rp_event_query(meeting.event);
    fine = fine && rp__block_alloc(&rp__cpu_device, rp__cpu_device.default_stream, 1 << 20, &b) == RP_OK;
    fine = fine && rp__block_used_by(b, meeting.stream) == RP_OK;
    if (fine) rp__block_free(&rp__cpu_device, b);
    fine = fine && run_affine(meeting.stream, &meeting.x, 2, 1) == RP_OK;
    rp_event *e = rp_event_new(rp_cpu(), false);
    fine = fine && rp_event_record(e, meeting.stream) == RP_OK;
    rp_event_release(e);
    atomic_store(&meeting.answered, true);
    *(bool *)ok = fine;
    return NULL;
}

static void no_lock_while_a_kernel_runs(void **state) {
    (void)state;
    for (int by_memory = 0; by_memory < 2;
         by_memory++) { /* who runs it: one that waits, or one that allocates and frees */
        pthread_t thread;
        bool fine = false;
        atomic_store(&meeting.runs, false);
        atomic_store(&meeting.answered, false);
        atomic_store(&meeting.late, false);
        meeting.x = 1;
        meeting.stream = rp_stream_new(rp_cpu());
        meeting.event = rp_event_new(rp_cpu(), false);
        rp__launch l = launch_of(&waiting_kernel, NULL, 0, "wait_for_answer");
        rp__block *b = memory_that(meeting.stream);
        assert_int_equal(rp__launch_on(meeting.stream, &l), RP_OK);
        assert_int_equal(rp_event_record(meeting.event, meeting.stream), RP_OK);
        assert_int_equal(pthread_create(&thread, NULL, answer, &fine), 0);
        rp__block_free(&rp__cpu_device, b);
        while (by_memory && !atomic_load(&meeting.runs)) rp__block_free(&rp__cpu_device, memory_that(meeting.stream));
        assert_int_equal(rp_stream_synchronize(meeting.stream), RP_OK);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_true(fine);
        assert_false(atomic_load(&meeting.late));
        assert_int_equal(rp_stream_synchronize(meeting.stream), RP_OK);
        assert_int_equal(meeting.x, 3);
        rp_event_release(meeting.event);
        rp_stream_release(meeting.stream);
    }
    assert_false(rp_failed());
}

int main(void) {
    setenv("REPRISE_STREAM_SEED", "1", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_keeps_its_order_and_waits),
        cmocka_unit_test(a_missing_event_shows),
        cmocka_unit_test(no_lock_while_a_kernel_runs),
        cmocka_unit_test(data_is_there),
        cmocka_unit_test(events_answer),
        cmocka_unit_test(streams_belong_to_threads),
        cmocka_unit_test(graphs_run_in_an_order_of_their_edges),
        cmocka_unit_test(graphs_take_new_words),
        cmocka_unit_test(captures_record_and_replay),
        cmocka_unit_test(captures_refuse),
        cmocka_unit_test(modes_differ_for_others),
        cmocka_unit_test(graphs_can_be_captured),
        cmocka_unit_test(conflicts_come_from_slots),
        cmocka_unit_test(bad_indices_are_reported_when_waited_for),
        cmocka_unit_test(a_recorder_takes_launches),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
