/* Threads: handles passed between them, caches that migrate, the pool under several callers, streams and captures side by side.
   ctest: labels=cuda,threads timeout=600 cost=10 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <math.h>

#include "core/thread.h"
#include "device/capture.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/program.h"
#include "support/cuda.h"
#include "support/slow.h"
#include "tensor/tensor.h"

enum { THREADS = 4, MANY = 8, ROUNDS = 2000 };

static bool have_cuda;

static rp_memory_stats stats(void) {
    rp_memory_stats s = {.struct_size = sizeof s};
    rp_memory_stats_get(rp_cpu(), &s);
    return s;
}

static void run_in(int n, void *(*body)(void *), void *ctx) {
    pthread_t threads[MANY];
    for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&threads[i], NULL, body, ctx), 0);
    for (int i = 0; i < n; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
}
static void run(void *(*body)(void *), void *ctx) { run_in(THREADS, body, ctx); }

static void *make_and_release(void *ctx) {
    (void)ctx;
    for (int i = 0; i < ROUNDS; i++) {
        rp_scope scope = rp_scope_begin();
        float x[3] = {(float)i, 1, 2}, y[3];
        rp_tensor *t = rp_from_data(x, RP_DIMS(3), RP_F32);
        rp__tensor_empty(rp_current_stream(rp_cpu())->device, RP_F32, (rp_dim[]){i % 50 * 300 + 1}, 1);
        if (rp_to_host(t, y, sizeof y) != RP_OK || memcmp(x, y, sizeof x)) return "wrong data";
        rp_scope_end(scope, NULL, 0);
    }
    return NULL;
}

static void threads_make_tensors(void **state) {
    (void)state;
    run(make_and_release, NULL);
    assert_int_equal(stats().live_tensors, 0);
    assert_int_equal(stats().allocated, 0);
    assert_int_equal(stats().allocations, stats().frees);
}

/* A ring of slots: each thread puts a retained handle and releases what it finds, mostly another thread's. */
static _Atomic(rp_tensor *) slots[16];

static void *exchange(void *ctx) {
    (void)ctx;
    for (int i = 0; i < ROUNDS; i++) {
        rp_scope scope = rp_scope_begin();
        int64_t value = i;
        rp_tensor *mine = rp_retain(rp_from_data(&value, RP_DIMS(1), RP_I64));
        rp_scope_end(scope, NULL, 0);
        rp_tensor *found = atomic_exchange(&slots[i % 16], mine);
        if (found) {
            int64_t got = rp_item_i64(found);
            if (got % 16 != i % 16 || rp_failed()) return "wrong handle";
            rp_release(found);
        }
    }
    return rp_failed() ? "failed" : NULL;
}

static void handles_move_between_threads(void **state) {
    (void)state;
    run(exchange, NULL);
    for (int i = 0; i < 16; i++) rp_release(atomic_exchange(&slots[i], NULL));
    assert_int_equal(stats().live_tensors, 0);
    assert_int_equal(stats().allocated, 0);
}

static rp_tensor *shared;

static void *retain_release(void *ctx) {
    (void)ctx;
    for (int i = 0; i < ROUNDS; i++) {
        rp_scope scope = rp_scope_begin();
        rp_retain(shared);
        rp_tensor *view = rp__tensor_view(shared, (rp_dim[]){1}, (rp_dim[]){1}, 1, 1);
        rp__tensor_enter_scope(shared);
        if (rp_item_i64(view) != 8) return "wrong value";
        rp_scope_end(scope, NULL, 0);
        rp_release(shared);
    }
    return NULL;
}

static void one_handle_is_counted_by_many(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    shared = rp_from_data((int64_t[]){7, 8}, RP_DIMS(2), RP_I64);
    run(retain_release, NULL);
    assert_int_equal(shared->refs, 1);
    assert_int_equal(shared->storage->refs, 1);
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(stats().live_tensors, 0);
}

static void add_one(void *ctx, int64_t begin, int64_t end) {
    int *x = ctx;
    for (int64_t i = begin; i < end; i++) x[i]++;
}

static void *use_pool(void *ctx) {
    (void)ctx;
    int x[500] = {0};
    for (int i = 0; i < 300; i++) rp__parallel(500, 1 + i % 100, add_one, x);
    for (int i = 0; i < 500; i++) {
        if (x[i] != 300) return "wrong count";
    }
    return NULL;
}

static void the_pool_serves_several_callers(void **state) {
    (void)state;
    int before = rp_num_threads();
    rp_set_num_threads(3);
    run(use_pool, NULL);
    rp_set_num_threads(before);
}

static void increment(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    (void)kernel, (void)begin, (void)end;
    ++*(int *)(uintptr_t)words[0];
}
static rp__kernel increment_kernel = {.kind = RP__KERNEL_CPU, .name = "increment", .cpu = increment};

static void *use_streams(void *ctx) {
    (void)ctx;
    rp_stream *s = rp_stream_new(rp_cpu()), *t = rp_stream_new(rp_cpu());
    rp_event *e = rp_event_new(rp_cpu(), false);
    rp_pool *pool = rp_pool_new(rp_cpu());
    rp_set_current_stream(s); /* left to the thread's end */
    int x = 0;
    uint64_t words[] = {(uint64_t)(uintptr_t)&x};
    rp__launch l = {.kernel = &increment_kernel, .words = words, .n_words = 1, .items = 1, .grain = 1, .barrier = true};
    const rp__device_ops *ops = s->device->ops;
    for (int i = 0; i < 100; i++) {
        rp__launch_on(s, &l);
        rp_event_record(e, s);
        rp_stream_wait_event(t, e);
        rp__launch_on(t, &l);
        rp_stream_synchronize(t);
        if (x != 2 * i + 2 + i) return "wrong order";
        rp__devgraph *graph;
        rp__capture_random *random;
        size_t n;
        if (rp__capture_begin(s, pool, RP_CAPTURE_THREAD_LOCAL) != RP_OK) return "no capture";
        rp__launch_on(s, &l);
        if (rp__capture_end(s, &graph, &random, &n) != RP_OK) return "no graph";
        ops->graph_instantiate(graph, s);
        ops->graph_launch(graph, s);
        rp_stream_synchronize(s);
        ops->graph_free(graph);
        rp__block *b;
        if (rp__block_alloc(s->device, s, 70000, &b) != RP_OK || rp__block_used_by(b, t) != RP_OK) return "no memory";
        rp__block_free(s->device, b);
    }
    rp_event_release(e);
    rp_stream_release(s);
    rp_stream_release(t);
    rp_pool_release(pool);
    return rp_failed() ? "failed" : NULL;
}

static void threads_have_streams_and_captures(void **state) {
    (void)state;
    run(use_streams, NULL);
    rp_synchronize(rp_cpu());
    assert_int_equal(stats().allocated, 0);
}

/* One thread's stream begins and ends captures while another's allocations look whether memory that the stream used has come
   free. */
struct lender {
    rp_stream *s;
    _Atomic(rp_tensor *) lent; /* of the other thread; NULL: none is waiting */
    _Atomic bool done;
};

static void *capture_again_and_again(void *ctx) {
    struct lender *l = ctx;
    const char *wrong = NULL;
    if (rp_set_current_stream(l->s) != RP_OK) return "no stream";
    for (int i = 0; i < 300 && !wrong; i++) {
        rp_tensor *t = atomic_exchange(&l->lent, NULL);
        if (t) {
            rp_scope scope = rp_scope_begin();
            (void)rp_sin(t);
            rp_scope_end(scope, NULL, 0);
            rp_release(t);
        }
        rp_graph *g = rp_graph_new();
        if (rp_graph_begin(g, rp_cpu(), RP_OPTIONS(rp_graph_options, .stream = l->s)) != RP_OK) wrong = "no capture";
        rp_scope scope = rp_scope_begin();
        rp_tensor *y = rp_fill_(rp_empty(RP_DIMS(3)), rp_f64(i));
        if (rp_graph_end(g) != RP_OK || rp_graph_replay(g) != RP_OK) wrong = "no graph";
        if (!wrong && rp_item_f64(rp_select(y, 0, 1)) != i) wrong = "wrong values";
        rp_scope_end(scope, NULL, 0);
        rp_graph_release(g);
    }
    atomic_store(&l->done, true);
    rp_release(atomic_exchange(&l->lent, NULL));
    return (void *)(uintptr_t)wrong;
}

static void a_stream_captures_while_others_ask_for_it(void **state) {
    (void)state;
    struct lender l = {.s = rp_stream_new(rp_cpu())};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, capture_again_and_again, &l), 0);
    while (!atomic_load(&l.done)) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *t = rp_retain(rp_ones(RP_DIMS(20000))), *none = NULL;
        if (!atomic_compare_exchange_strong(&l.lent, &none, t)) rp_release(t);
        rp_scope_end(scope, NULL, 0);
    }
    void *wrong;
    pthread_join(thread, &wrong);
    if (wrong) fail_msg("%s: %s", (const char *)wrong, rp_error_message());
    rp_release(atomic_exchange(&l.lent, NULL));
    assert_false(rp_failed());
    rp_stream_release(l.s);
    rp_synchronize(rp_cpu());
}

static void *own_error(void *ctx) {
    (void)ctx;
    if (rp_failed()) return "an error of another thread";
    rp_ndim(NULL);
    return rp_error_take() == RP_ERROR_INVALID_ARGUMENT ? NULL : "no error";
}

static void errors_belong_to_threads(void **state) {
    (void)state;
    rp_ndim(NULL);
    run(own_error, NULL);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
}

/* Kernels of every walk: elements, along, across, several phases, and one row of many chunks. */
static void *use_kernels(void *ctx) {
    rp_tensor **x = ctx; /* (300, 500), and a row of 200 000 */
    rp_scope scope = rp_scope_begin();
    rp_tensor *y[] = {
        rp_mul(x[0], x[0]),
        rp_sum(x[0], RP_DIMS(1), false, RP_OPTIONS(rp_sum_options, .dtype = RP_F32)),
        rp_sum(x[0], RP_DIMS(0), false, RP_OPTIONS(rp_sum_options, .dtype = RP_F32)),
        rp_softmax(x[0], 1),
        rp_softmax(x[0], 0),
        rp_softmax(x[1], 0),
        rp_matmul(x[0], rp_transpose(x[0], 0, 1)),
        rp_to_dtype(rp_matmul(rp_to_dtype(x[0], RP_F64), rp_to_dtype(rp_transpose(x[0], 0, 1), RP_F64)), RP_F32),
        rp_conv2d(rp_view(x[1], RP_DIMS(1, 8, 100, 250)), rp_view(x[0], RP_DIMS(750, 8, 5, 5)), NULL, RP_DIMS(4, 4),
                  RP_DIMS(1, 1), RP_DIMS(1, 1), 1)};
    enum { RESULTS = sizeof y / sizeof *y };
    bool equal = true;
    for (int i = 0; i < RESULTS; i++) {
        if (!x[2 + i])
            x[2 + i] = rp_retain(y[i]);
        else
            equal = equal && !memcmp(rp_data(x[2 + i]), rp_data(y[i]), (size_t)rp_numel(y[i]) * sizeof(float));
    }
    rp_scope_end(scope, NULL, 0);
    return rp_failed() ? "failed" : equal ? NULL : "other bits";
}

/* A kernel needs little stack of the thread that calls it, and works where a thread cannot have scratch of its own. */
static void kernels_in_threads_of_small_stacks(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x[11] = {rp_randn(RP_DIMS(300, 500)), rp_randn(RP_DIMS(200000))};
    assert_null(use_kernels(x));
    pthread_attr_t small;
    assert_int_equal(pthread_attr_init(&small), 0);
    /* A thread's stack with musl; with sanitizers frames are larger, and shadow of the thread is in it. */
    const size_t stack = (SLOW_BUILD ? 512 : 128) * 1024;
    assert_int_equal(pthread_attr_setstacksize(&small, stack), 0);
    for (int in_reserve = 0; in_reserve < 2; in_reserve++) {
        rp__interpret_in_reserve = rp__gemm_scratch_shared = in_reserve;
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], &small, use_kernels, x), 0);
        for (int i = 0; i < THREADS; i++) {
            void *failed;
            pthread_join(threads[i], &failed);
            assert_null(failed);
        }
    }
    rp__interpret_in_reserve = rp__gemm_scratch_shared = false;
    pthread_attr_destroy(&small);
    for (int i = 2; i < 11; i++) rp_release(x[i]);
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(stats().live_tensors, 0);
}

/* One compiled function, trained by all: the backward of a call runs its dropout again with the numbers of that call. */
static void mask_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(rp_dropout(in[0], 0.5, true), in[0]);
}

static void masked(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    rp_checkpoint((rp_fn){mask_body, NULL, 0, "mask"}, in, n_in, out, n_out);
}

static const char *train_once(rp_compiled *f) {
    enum { N = 256 };
    const char *wrong = NULL;
    float mask[N], gradient[N];
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_ones(RP_DIMS(N)), *y = NULL;
    rp_set_requires_grad(x, true);
    rp_call(f, &x, 1, &y, 1);
    rp_backward(rp_sum(y), NULL, NULL);
    if (rp_to_host(y, mask, sizeof mask) != RP_OK || rp_to_host(rp_grad_of(x), gradient, sizeof gradient) != RP_OK)
        wrong = "a call failed";
    for (int i = 0; i < N && !wrong; i++)
        if (gradient[i] != 2 * mask[i]) wrong = "a gradient has another mask than its result";
    rp_scope_end(scope, NULL, 0);
    return wrong;
}

static void *train_together(void *ctx) {
    const char *wrong = NULL;
    for (int i = 0; i < ROUNDS / 10 && !wrong; i++) wrong = train_once(ctx);
    return (void *)(uintptr_t)wrong;
}

static void draws_belong_to_calls(void **state) {
    (void)state;
    rp_compiled *f = rp_compile((rp_fn){masked, NULL, 0, "masked"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int i = 0; i < 3; i++) assert_null(train_once(f));
    run(train_together, f);
    rp_compiled_release(f);
}

/* One compiled function, called with other sizes by each: its programs share the memory of their temporaries and take turns. */
static void products(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *a = rp_matmul(in[0], rp_transpose(in[0], 0, 1)), *b = rp_matmul(a, in[0]);
    out[0] = rp_sum(rp_matmul(b, rp_transpose(b, 0, 1)));
}

struct sized {
    rp_compiled *f;
    atomic_int next;
};

static void *call_with_a_size(void *ctx) {
    struct sized *c = ctx;
    const int which = atomic_fetch_add(&c->next, 1);
    const int64_t n = 24 + 3 * which, v = INT64_C(1) << which; /* n^4 < 2^24: exact in f32 */
    const char *wrong = NULL;
    rp_scope scope = rp_scope_begin();
    bool grad = rp_set_grad_enabled(false);
    rp_tensor *x = rp_mul_scalar(rp_ones(RP_DIMS(n, 16)), rp_i64(v));
    for (int i = 0; i < ROUNDS && !wrong; i++) {
        float sum = 0;
        rp_tensor *y = NULL;
        rp_scope inner = rp_scope_begin();
        if (rp_call(c->f, &x, 1, &y, 1) != RP_OK || rp_to_host(y, &sum, sizeof sum) != RP_OK)
            wrong = "a call failed";
        else if (sum != 4096 * (float)(n * n * n * n) * (float)(v * v * v * v * v * v)) /* b is 16 n v^3 everywhere */
            wrong = "temporaries of another call";
        rp_scope_end(inner, NULL, 0);
    }
    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    return (void *)(uintptr_t)wrong;
}

static void sizes_take_turns(void **state) {
    (void)state;
    struct sized c = {rp_compile((rp_fn){products, NULL, 0, "products"}, NULL), 0};
    for (int i = 0; i < THREADS; i++) assert_null(call_with_a_size(&c)); /* the sizes become a symbol */
    atomic_store(&c.next, 0);
    run(call_with_a_size, &c);
    rp_compiled_release(c.f);
}

static void twice_and_one(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add_scalar(rp_mul_scalar(in[0], rp_f64(2)), rp_f64(1));
}

static const char *slow_call(rp_compiled *f, int64_t n, float value) {
    float got[1024];
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_full(RP_DIMS(n), rp_f64(value)), *y = NULL;
    bool ok = rp_call(f, &x, 1, &y, 1) == RP_OK && rp_to_host(y, got, (size_t)n * sizeof *got) == RP_OK;
    for (int64_t i = 0; i < n && ok; i++) ok = got[i] == 2 * value + 1;
    rp_scope_end(scope, NULL, 0);
    return ok ? NULL : "a call gave what another one was to give";
}

struct shared_function {
    rp_compiled *f;
    _Atomic int threads;
    bool sizes; /* the last call of one thread brings a second specialisation */
};

static void *call_together(void *ctx) {
    struct shared_function *s = ctx;
    const char *wrong = NULL;
    const int me = atomic_fetch_add(&s->threads, 1);
    while (atomic_load(&s->threads) < THREADS) (void)sched_yield();
    for (int i = 0; i < 24 && !wrong; i++) {
        int64_t n = s->sizes && (i + me) % 12 == 11 ? 1000 : 1024;
        wrong = slow_call(s->f, n, (float)(100 * me + i));
    }
    return (void *)(uintptr_t)wrong;
}

/* Some threads are still in the first calls of a program when others find it settled; then a second specialisation comes. */
static void one_function_serves_several_callers(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct shared_function s = {.sizes = i % 2};
        s.f = rp_compile((rp_fn){twice_and_one, NULL, 0, "f"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
        for (int k = 0; k < i % 4; k++) assert_null(slow_call(s.f, 1024, 1));
        run(call_together, &s);
        rp_compiled_release(s.f);
    }
}

/* ---- sizes that no thread has brought before, forward and backward: tables of symbols are read by all, changed by none */

struct sizes_of_threads {
    rp_compiled *f;
    rp_tensor *weight; /* captured */
    _Atomic int threads;
};
static void loss_of_rows(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct sizes_of_threads *s = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_softmax(rp_mul(rp_tanh(in[0]), s->weight), 1);
    rp_tensor *flat = rp_reshape(rp_transpose(h, 0, 1), (const int64_t[]){-1}, 1);
    out[0] = rp_sum(rp_mul(flat, flat));
    out[1] = rp_slice(h, 0, 1, INT64_MAX, 1);
}

static const char *loss_and_gradient(const struct sizes_of_threads *s, rp_compiled *f, int64_t n, int second,
                                     float *got) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_sin(rp_reshape(
        rp_arange(rp_i64(0), rp_i64(4 * n), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)), RP_DIMS(n, 4)));
    rp_tensor *out[2] = {NULL, NULL}, *grad = NULL;
    (void)s;
    bool ok = rp_set_requires_grad(x, true) == RP_OK && rp_call(f, &x, 1, out, 2) == RP_OK;
    if (ok && second) { /* gradients of one result or of both: another plan */
        rp_tensor *seed = rp_cos(rp_detach(out[1])), *one = rp_ones(RP_NO_DIMS), *seeds[] = {one, seed};
        ok = rp_grad(out, 2, &x, 1, seeds, NULL, &grad) == RP_OK;
    } else if (ok) {
        ok = rp_grad(out, 1, &x, 1, NULL, NULL, &grad) == RP_OK;
    }
    ok = ok && rp_to_host(out[0], got, sizeof *got) == RP_OK &&
         rp_to_host(grad, got + 1, (size_t)n * 4 * sizeof *got) == RP_OK;
    rp_scope_end(scope, NULL, 0);
    return ok ? NULL : "a call or its backward failed";
}

static void *call_and_differentiate(void *ctx) {
    struct sizes_of_threads *s = ctx;
    const char *wrong = NULL;
    const int me = atomic_fetch_add(&s->threads, 1);
    float want[1 + 4 * 24], got[1 + 4 * 24];
    rp_fn fn = {loss_of_rows, s, 0, "rows"};
    rp_compiled *plain = rp_plain(fn);
    while (atomic_load(&s->threads) < MANY) (void)sched_yield();
    for (int i = 0; i < 20 && !wrong; i++) {
        int64_t n = 2 + (i * 7 + me * 3) % 20;
        wrong = loss_and_gradient(s, plain, n, i % 5 == 0, want);
        if (!wrong) wrong = loss_and_gradient(s, s->f, n, i % 5 == 0, got);
        if (!wrong && memcmp(want, got, (size_t)(1 + 4 * n) * sizeof *want) != 0) wrong = "other bits than eager ones";
    }
    rp_compiled_release(plain);
    return (void *)(uintptr_t)wrong;
}

static void sizes_and_gradients(void **state) {
    (void)state;
    static const char *const backends[] = {"fused", "aot_eager", "cudagraphs"};
    for (int k = 0; k < 6; k++) {
        rp_scope scope = rp_scope_begin();
        struct sizes_of_threads s = {.weight = rp_cos(rp_arange(rp_i64(0), rp_i64(4), rp_i64(1),
                                                                RP_OPTIONS(rp_arange_options, .dtype = RP_F32)))};
        s.f = rp_compile((rp_fn){loss_of_rows, &s, 0, "rows"},
                         RP_OPTIONS(rp_compile_options, .backend = backends[k % 3]));
        float got[1 + 4 * 24];
        for (int i = 0; i < k; i++)
            assert_null(loss_and_gradient(&s, s.f, 2 + i, 0, got)); /* static, symbolic, with plans */
        run_in(MANY, call_and_differentiate, &s);
        rp_compiled_release(s.f);
        rp_scope_end(scope, NULL, 0);
    }
}

/* ---- functions of few instances, whose programs come and go while others run; graphed callables beside them, and readers of explain */

enum { KINDS = 4, MIXED_CALLS = 24, MIXED_ROWS = 12 };
struct mixed {
    struct sizes_of_threads s;
    rp_compiled *f[KINDS];
    _Atomic int threads, explained;
};

/* A callable of the thread's own, graphed while others capture and run: values and gradients are those of the plain function. */
static const char *graph_and_call(struct mixed *m, int64_t n) {
    const char *wrong = NULL;
    float want[1 + 4 * MIXED_ROWS], got[1 + 4 * MIXED_ROWS];
    rp_scope scope = rp_scope_begin();
    rp_tensor *sample = rp_ones(RP_DIMS(n, 4));
    rp_compiled *g = NULL, *plain = rp_plain((rp_fn){loss_of_rows, &m->s, 0, "rows"});
    const rp_fn fn = {loss_of_rows, &m->s, 0, "rows"};
    if (rp_set_requires_grad(sample, true) != RP_OK ||
        rp_make_graphed_callables(&(rp_graphed_callable){.fn = fn, .args = &sample, .n_args = 1, .n_out = 2}, 1,
                                  RP_OPTIONS(rp_graphed_options, .warmup = 1), &g) != RP_OK)
        wrong = "no graphed callable";
    for (int i = 0; i < 2 && !wrong; i++) {
        wrong = loss_and_gradient(&m->s, plain, n, 1, want);
        if (!wrong) wrong = loss_and_gradient(&m->s, g, n, 1, got);
        if (!wrong && memcmp(want, got, (size_t)(1 + 4 * n) * sizeof *want) != 0)
            wrong = "a graphed callable gives other bits";
    }
    rp_compiled_release(g);
    rp_compiled_release(plain);
    rp_scope_end(scope, NULL, 0);
    return wrong;
}

static void read_explain(struct mixed *m, rp_compiled *f) {
    const size_t n = rp_explain_count(f);
    for (size_t i = 0; i < n; i++) {
        rp_explain_entry e;
        if (rp_explain_get(f, i, &e) == RP_OK) /* its texts are for who calls alone */
            atomic_fetch_add(&m->explained, e.count > 0);
        else
            (void)rp_error_take(); /* others made it shorter */
    }
}

static void *call_everything(void *ctx) {
    struct mixed *m = ctx;
    const char *wrong = NULL;
    const int me = atomic_fetch_add(&m->threads, 1);
    float want[1 + 4 * MIXED_ROWS], got[1 + 4 * MIXED_ROWS];
    rp_compiled *plain = rp_plain((rp_fn){loss_of_rows, &m->s, 0, "rows"});
    while (atomic_load(&m->threads) < MANY) (void)sched_yield();
    for (int i = 0; i < MIXED_CALLS && !wrong; i++) {
        const int64_t n = 2 + (i * 5 + me * 3) % (MIXED_ROWS - 1);
        rp_compiled *f = m->f[(i + me) % KINDS];
        wrong = loss_and_gradient(&m->s, plain, n, i % 3 == 0, want);
        if (!wrong) wrong = loss_and_gradient(&m->s, f, n, i % 3 == 0, got);
        if (!wrong && memcmp(want, got, (size_t)(1 + 4 * n) * sizeof *want) != 0) wrong = "other bits than eager ones";
        if (!wrong && i % 8 == me) wrong = graph_and_call(m, n);
        if (!wrong && i % 6 == 5) read_explain(m, f);
    }
    rp_compiled_release(plain);
    return (void *)(uintptr_t)wrong;
}

static void everything_at_once(void **state) {
    (void)state;
    static const char *const backends[KINDS] = {"fused", "aot_eager", "cudagraphs", "fused"};
    rp_scope scope = rp_scope_begin();
    struct mixed m = {
        .s.weight = rp_cos(rp_arange(rp_i64(0), rp_i64(4), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)))};
    for (int k = 0; k < KINDS;
         k++) /* the last keeps one program of each, the others two sizes of forward and backward */
        m.f[k] = rp_compile((rp_fn){loss_of_rows, &m.s, 0, "rows"},
                            RP_OPTIONS(rp_compile_options, .backend = backends[k], .instance_limit = k == 3 ? 1 : 4));
    run_in(MANY, call_everything, &m);
    assert_true(atomic_load(&m.explained) > 0);
    bool evicted = false;
    for (size_t i = 0; i < rp_explain_count(m.f[3]); i++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(m.f[3], i, &e), RP_OK);
        evicted = evicted || strcmp(e.reason, "instance-evicted") == 0;
    }
    assert_true(evicted);
    for (int k = 0; k < KINDS; k++) rp_compiled_release(m.f[k]);
    rp_scope_end(scope, NULL, 0);
    assert_false(rp_failed());
}

/* ---- graphs that threads share: each call is whole, whoever replays meanwhile */

static void scaled_sum(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rp_sum(rp_mul(rp_sin(in[0]), *(rp_tensor **)ctx));
}
static void counts(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add_scalar_(in[0], rp_i64(1));
}

typedef struct shared_graphs {
    rp_device device;
    rp_compiled *graphed, *counting, *inner;
    rp_graph *graph;
    rp_tensor *count;
} shared_graphs;

static void *replay_together(void *ctx) {
    const shared_graphs *s = ctx;
    char *failed = NULL;
    if (rp_set_default_device(s->device) != RP_OK) return "no device";
    for (int i = 0; i < 100 && !failed; i++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_full(RP_DIMS(3, 5), rp_f64(0.01 * i)), *y = NULL, *n = rp_full(RP_DIMS(4), rp_i64(i));
        rp_set_requires_grad(x, true);
        if (rp_call(s->graphed, &x, 1, &y, 1) != RP_OK) failed = "a graphed call";
        /* what is read while another thread writes over it is an error, and no value of that call: a race for all that */
        float got = 30 * (float)sin(0.01 * i);
        rp_status read = failed || RACES_ONLY ? RP_OK : rp_to_host(y, &got, sizeof got);
        if (read != RP_OK && rp_error_take() != RP_ERROR_STALE) failed = "a read";
        if (!failed && read == RP_OK && fabs(got - 30 * sin(0.01 * i)) > 1e-4) failed = "a result";
        rp_status status = failed ? RP_OK : rp_backward(y, NULL, NULL);
        if (status != RP_OK && rp_error_take() != RP_ERROR_STALE) failed = "a backward";
        rp_set_grad_enabled(false);
        if (!failed && rp_call(s->counting, &n, 1, &y, 1) != RP_OK) failed = "a counting call";
        if (!failed && rp_item_i64(rp_amin(n)) != i + 1) failed = "what a graph wrote into an argument";
        if (!failed && rp_item_i64(rp_amax(n)) != i + 1) failed = "what a graph wrote into an argument";
        n = rp_full(RP_DIMS(4), rp_i64(i));
        if (!failed && rp_call(s->inner, &n, 1, &y, 1) != RP_OK) failed = "a call of copies";
        if (!failed && rp_item_i64(rp_amin(y)) != i + 1) failed = "a result that is a copy";
        if (!failed && rp_graph_replay(s->graph) != RP_OK) failed = "a replay";
        rp_set_grad_enabled(true);
        rp_scope_end(scope, NULL, 0);
    }
    return failed;
}

static void graphs_are_shared(rp_device device) {
    assert_int_equal(rp_set_default_device(device), RP_OK);
    rp_scope scope = rp_scope_begin();
    rp_tensor *w = rp_full(RP_DIMS(3, 5), rp_f64(2)), *x = rp_ones(RP_DIMS(3, 5)), *y;
    rp_tensor *n = rp_to_dtype(rp_zeros(RP_DIMS(4)), RP_I64);
    rp_set_requires_grad(w, true);
    rp_set_requires_grad(x, true);
    shared_graphs s = {.device = device, .count = rp_to_dtype(rp_zeros(RP_DIMS(4)), RP_I64)};
    const rp_graphed_callable a = {{scaled_sum, &w, sizeof w, "scaled_sum"}, &x, 1, &w, 1, 1};
    const rp_graphed_callable b = {{counts, NULL, 0, "counts"}, &n, 1, NULL, 0, 1};
    assert_int_equal(rp_make_graphed_callables(&a, 1, NULL, &s.graphed), RP_OK);
    assert_int_equal(rp_make_graphed_callables(&b, 1, NULL, &s.counting), RP_OK);
    s.inner = rp_cudagraphs_inner((rp_fn){counts, NULL, 0, "counts"}, &n, 1, 1, true, true);
    s.graph = rp_graph_new();
    assert_int_equal(rp_graph_begin(s.graph, device, NULL), RP_OK);
    rp_add_scalar_(s.count, rp_i64(1));
    assert_int_equal(rp_graph_end(s.graph), RP_OK);
    run(replay_together, &s);
    assert_int_equal(rp_synchronize(device), RP_OK);
    assert_int_equal(rp_item_i64(rp_amin(s.count)), 100 * THREADS);
    rp_set_grad(w, NULL);
    assert_int_equal(rp_call(s.graphed, &x, 1, &y, 1), RP_OK);
    assert_int_equal(rp_backward(y, NULL, NULL), RP_OK);
    assert_true(rp_item_f64(rp_amax(rp_abs(rp_sub(rp_grad_of(w), rp_sin(rp_detach(x)))))) == 0);
    if (device.type == RP_DEVICE_CUDA) { /* the default device is a thread's */
        rp_set_default_device(rp_cpu());
        rp_tensor *elsewhere = rp_ones(RP_DIMS(3, 5));
        assert_int_equal(rp_call(s.graphed, &elsewhere, 1, &y, 1), RP_ERROR_GUARD);
        assert_non_null(strstr(rp_error_message(), "on cpu; it was captured with float32 (3, 5) on cuda:0"));
        rp_error_take();
    }
    rp_graph_release(s.graph);
    rp_compiled_release(s.inner);
    rp_compiled_release(s.counting);
    rp_compiled_release(s.graphed);
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

/* ---- a function is released while calls of it are under way */

static atomic_int under_way;
static rp_status slow_run(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                          rp_tensor *const *in_tensors, rp_tensor *const *out_tensors, const rp_attr *attrs,
                          size_t n_attrs) {
    (void)ctx, (void)n_in, (void)n_out, (void)out_tensors, (void)attrs, (void)n_attrs;
    atomic_fetch_add(&under_way, 1);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    const float *x = in[0];
    float *y = out[0];
    for (int64_t i = 0; i < rp_numel(in_tensors[0]); i++) y[i] = 3 * x[i];
    return RP_OK;
}
static rp_status slow_backward(void *ctx, rp_tensor *const *grad_out, size_t n_out, rp_tensor *const *in, size_t n_in,
                               rp_tensor *const *out, const rp_attr *attrs, size_t n_attrs, rp_tensor **grad_in) {
    (void)ctx, (void)n_out, (void)in, (void)n_in, (void)out, (void)attrs, (void)n_attrs;
    grad_in[0] = rp_mul_scalar(grad_out[0], rp_i64(3));
    return RP_OK;
}
static void slow_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *y = NULL;
    (void)ctx, (void)n_in, (void)n_out;
    rp_op_call("threads_slow", (rp_tensor *[]){rp_add_scalar(in[0], rp_i64(1))}, 1, NULL, 0, &y, 1);
    out[0] = rp_add_scalar(y, rp_i64(1));
}

typedef struct one_call {
    rp_compiled *f;
    bool needed;
} one_call;
static void *call_and_check(void *ctx) {
    const one_call *c = ctx;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_ones(RP_DIMS(100)), *y = NULL;
    rp_set_requires_grad(x, c->needed);
    rp_set_grad_enabled(c->needed);
    bool right = rp_call(c->f, &x, 1, &y, 1) == RP_OK && rp_item_f64(rp_sum(rp_detach(y))) == 700;
    if (right && c->needed)
        right = rp_backward(rp_sum(y), NULL, NULL) == RP_OK && rp_item_f64(rp_sum(rp_grad_of(x))) == 300;
    rp_scope_end(scope, NULL, 0);
    return right ? NULL : "a call of a function that was released meanwhile";
}

static void released_under_way(void **state) {
    (void)state;
    const rp_op_descriptor slow = {.struct_size = sizeof slow,
                                   .schema = "threads_slow(Tensor self) -> Tensor",
                                   .doc = "3 self, after a while",
                                   .cpu = slow_run,
                                   .backward = slow_backward};
    assert_int_equal(rp_op_register(&slow), RP_OK);
    for (int round = 0; round < 4; round++) { /* compiled, for training too; graphed; of copies */
        rp_scope scope = rp_scope_begin();
        const rp_fn fn = {slow_body, NULL, 0, "slow"};
        one_call c = {.needed = round == 1};
        rp_tensor *x = rp_ones(RP_DIMS(100));
        const rp_graphed_callable g = {fn, &x, 1, NULL, 0, 1};
        if (round == 2)
            assert_int_equal(rp_make_graphed_callables(&g, 1, NULL, &c.f), RP_OK);
        else
            c.f = round == 3 ? rp_cudagraphs_inner(fn, &x, 1, 1, true, true) : rp_compile(fn, NULL);
        for (int k = 0; k < 4; k++) assert_null(call_and_check(&c));
        rp_set_grad_enabled(true);
        atomic_store(&under_way, 0);
        pthread_t thread;
        void *failed;
        assert_int_equal(pthread_create(&thread, NULL, call_and_check, &c), 0);
        while (!atomic_load(&under_way)) sched_yield();
        rp_compiled_release(c.f);
        pthread_join(thread, &failed);
        assert_null(failed);
        rp_scope_end(scope, NULL, 0);
    }
    assert_false(rp_failed());
}

/* ---- so is a graph, or it is made empty; and a function while its backward runs */

static void *replay_once(void *graph) { return rp_graph_replay(graph) == RP_OK ? NULL : "a replay under way"; }

static void raw_graph_goes_under_way(void **state) {
    (void)state;
    for (int round = 0; round < 3; round++) { /* released; reset; reset and used for another capture */
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_ones(RP_DIMS(100)), *y = NULL;
        rp_graph *g = rp_graph_new();
        assert_int_equal(rp_graph_begin(g, rp_cpu(), NULL), RP_OK);
        slow_body(NULL, &x, 1, &y, 1);
        assert_int_equal(rp_graph_end(g), RP_OK);
        atomic_store(&under_way, 0);
        pthread_t thread;
        void *failed;
        assert_int_equal(pthread_create(&thread, NULL, replay_once, g), 0);
        while (!atomic_load(&under_way)) sched_yield();
        if (round == 0) {
            rp_graph_release(g);
        } else {
            assert_int_equal(rp_graph_reset(g), RP_OK);
            assert_int_equal(rp_graph_replay(g), RP_ERROR_STATE);
            rp_error_take();
        }
        if (round == 2) {
            assert_int_equal(rp_graph_begin(g, rp_cpu(), NULL), RP_OK);
            rp_tensor *z = rp_add_scalar(x, rp_i64(1));
            assert_int_equal(rp_graph_end(g), RP_OK);
            assert_int_equal(rp_graph_replay(g), RP_OK);
            assert_true(rp_item_f64(rp_sum(z)) == 200);
        }
        pthread_join(thread, &failed);
        assert_null(failed);
        assert_int_equal(rp_synchronize(rp_cpu()), RP_OK);
        assert_true(rp_item_f64(rp_sum(y)) == 700);
        if (round > 0) rp_graph_release(g);
        rp_scope_end(scope, NULL, 0);
    }
    assert_false(rp_failed());
}

typedef struct one_backward {
    rp_compiled *f;
    atomic_int called, go;
} one_backward;
static void *backward_at_release(void *ctx) {
    one_backward *b = ctx;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_ones(RP_DIMS(3, 5)), *y = NULL;
    rp_set_requires_grad(x, true);
    bool right = rp_call(b->f, &x, 1, &y, 1) == RP_OK;
    rp_tensor *seed = rp_full(RP_NO_DIMS, rp_f64(2)); /* lies elsewhere than the captured one: explain is told */
    atomic_store(&b->called, 1);
    while (!atomic_load(&b->go)) sched_yield();
    right = right && rp_backward(y, seed, NULL) == RP_OK;
    if (right) right = fabs(rp_item_f64(rp_sum(rp_grad_of(x))) - 60 * cos(1)) < 1e-4;
    rp_scope_end(scope, NULL, 0);
    return right ? NULL : "a backward of a function that is released meanwhile";
}

static void released_in_a_backward(void **state) {
    (void)state;
    for (int round = 0; round < 50; round++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *w = rp_full(RP_DIMS(3, 5), rp_f64(2)), *x = rp_ones(RP_DIMS(3, 5));
        rp_set_requires_grad(x, true);
        one_backward b = {.f = NULL};
        const rp_graphed_callable g = {{scaled_sum, &w, sizeof w, "scaled_sum"}, &x, 1, NULL, 0, 1};
        assert_int_equal(rp_make_graphed_callables(&g, 1, NULL, &b.f), RP_OK);
        pthread_t thread;
        void *failed;
        assert_int_equal(pthread_create(&thread, NULL, backward_at_release, &b), 0);
        while (!atomic_load(&b.called)) sched_yield();
        atomic_store(&b.go, 1);
        rp_compiled_release(b.f);
        pthread_join(thread, &failed);
        assert_null(failed);
        rp_scope_end(scope, NULL, 0);
    }
    assert_false(rp_failed());
}

static void threads_share_graphs(void **state) {
    (void)state;
    graphs_are_shared(rp_cpu());
    if (have_cuda) graphs_are_shared(rp_cuda(0));
}

int main(void) {
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_make_tensors),
        cmocka_unit_test(handles_move_between_threads),
        cmocka_unit_test(one_handle_is_counted_by_many),
        cmocka_unit_test(the_pool_serves_several_callers),
        cmocka_unit_test(threads_have_streams_and_captures),
        cmocka_unit_test(a_stream_captures_while_others_ask_for_it),
        cmocka_unit_test(errors_belong_to_threads),
        cmocka_unit_test(kernels_in_threads_of_small_stacks),
        cmocka_unit_test(draws_belong_to_calls),
        cmocka_unit_test(sizes_take_turns),
        cmocka_unit_test(one_function_serves_several_callers),
        cmocka_unit_test(sizes_and_gradients),
        cmocka_unit_test(everything_at_once),
        cmocka_unit_test(threads_share_graphs),
        cmocka_unit_test(released_under_way),
        cmocka_unit_test(raw_graph_goes_under_way),
        cmocka_unit_test(released_in_a_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
