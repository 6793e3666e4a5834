/* Streams that somebody else made (rp_stream_wrap): their life, work on them beside the owner's own, and graphs that the owner captures
   while the library works. The owner is this file, through the driver's own functions.
   ctest: labels=cuda timeout=300 cost=8 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>

#include "core/alloc.h"

#include "support/cuda.h"

#define OK(expression)                                                                                                 \
    do {                                                                                                               \
        rp_status ok_status = (expression);                                                                            \
        if (ok_status != RP_OK || rp_failed()) fail_msg("%s: %s", #expression, rp_error_message());                    \
    } while (0)

/* The driver as its owner's program sees it. */
static struct {
    int (*stream_create)(void **stream, unsigned flags), (*stream_destroy)(void *stream), (*synchronize)(void *stream);
    int (*begin)(void *stream, int mode), (*end)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags), (*launch)(void *exec, void *stream);
    int (*exec_destroy)(void *exec), (*graph_destroy)(void *graph);
} cu;

static void find(void *library, const char *name, void *out) {
    void *p = dlsym(library, name);
    if (!p) fail_msg("the driver has no %s", name);
    memcpy(out, &p, sizeof p);
}

static int start(void **state) {
    (void)state;
    (void)rp_error_take();
    const char *path = getenv("REPRISE_LIBCUDA");
    void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);
    if (!library) return 1;
    find(library, "cuStreamCreate", &cu.stream_create);
    find(library, "cuStreamDestroy_v2", &cu.stream_destroy);
    find(library, "cuStreamSynchronize", &cu.synchronize);
    find(library, "cuStreamBeginCapture_v2", &cu.begin);
    find(library, "cuStreamEndCapture", &cu.end);
    find(library, "cuGraphInstantiateWithFlags", &cu.instantiate);
    find(library, "cuGraphLaunch", &cu.launch);
    find(library, "cuGraphExecDestroy", &cu.exec_destroy);
    find(library, "cuGraphDestroy", &cu.graph_destroy);
    (void)rp_set_default_device(rp_cuda(0));
    return rp_synchronize(rp_cuda(0)) != RP_OK;
}

#define CU(call) assert_int_equal((call), 0)

static rp_tensor *ramp(int64_t n, float by) {
    float v[256];
    for (int64_t i = 0; i < n; i++) v[i] = (float)i * by - 3.0F;
    return rp_from_data(v, RP_DIMS(n), RP_F32);
}

static void near(rp_tensor *t, rp_tensor *want) {
    float a[256], b[256];
    size_t bytes = (size_t)rp_numel(want) * sizeof *a;
    assert_int_equal(rp_numel(t), rp_numel(want));
    OK(rp_to_host(t, a, bytes));
    OK(rp_to_host(want, b, bytes));
    assert_memory_equal(a, b, bytes);
}

static void model(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *h = rp_sin(rp_mul(in[0], in[1]));
    out[0] = rp_add(h, rp_sum(h)); /* more than one kernel */
}

/* One native stream is one handle, as long as somebody holds it; it is never destroyed here. */
static void test_life(void **state) {
    (void)state;
    void *native = NULL;
    CU(cu.stream_create(&native, 1));
    rp_stream *a = rp_stream_wrap(rp_cuda(0), native), *b = rp_stream_wrap(rp_cuda(0), native),
              *plain = rp_stream_wrap(rp_cuda(0), NULL);
    OK(RP_OK);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, plain);
    rp_stream_release(b);
    OK(rp_stream_synchronize(a));
    rp_stream_release(a);
    rp_stream_release(plain);
    OK(RP_OK);
    CU(cu.synchronize(native));
    a = rp_stream_wrap(rp_cuda(0), native);
    OK(rp_stream_synchronize(a));
    rp_stream_release(a);
    CU(cu.stream_destroy(native));
    a = rp_stream_wrap(rp_cpu(), native);
    assert_int_equal(rp_error_take(), RP_ERROR_DEVICE);
    rp_stream_release(a);
}

/* Eager and compiled calls on an adopted stream, in its order. */
static void test_work(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    void *native = NULL;
    CU(cu.stream_create(&native, 1));
    rp_stream *before = rp_current_stream(rp_cuda(0)), *s = rp_stream_wrap(rp_cuda(0), native);
    rp_compiled *f = rp_compile((rp_fn){model, NULL, 0, "model"}, NULL);
    rp_tensor *x = ramp(200, 0.01F), *y = ramp(200, 0.02F), *want = NULL, *got[4];
    model(NULL, (rp_tensor *const[]){x, y}, 2, &want, 1);
    OK(rp_synchronize(rp_cuda(0)));
    OK(rp_set_current_stream(s));
    for (int k = 0; k < 4; k++)
        OK(rp_call(f, (rp_tensor *const[]){x, k & 1 ? rp_mul(y, rp_from_data(&(float){1}, RP_NO_DIMS, RP_F32)) : y}, 2,
                   &got[k], 1));
    CU(cu.synchronize(native));
    OK(rp_set_current_stream(before));
    for (int k = 0; k < 4; k++) near(got[k], want);
    rp_compiled_release(f);
    OK(rp_scope_end(scope, NULL, 0));
    rp_stream_release(s);
    OK(rp_synchronize(rp_cuda(0)));
    CU(cu.stream_destroy(native));
}

/* Once its last replay on `native` has run. */
static void destroy_recorded(void *native, void *exec, void *graph) {
    CU(cu.synchronize(native));
    CU(cu.exec_destroy(exec));
    CU(cu.graph_destroy(graph));
}

/* The owner captures: the graph computes again from what the arguments hold, whatever the library does in between. */
static void capture(bool compiled) {
    rp_scope scope = rp_scope_begin();
    void *native = NULL, *warm = NULL, *graph = NULL, *exec = NULL; /* tried on one stream, captured on another */
    CU(cu.stream_create(&native, 1));
    CU(cu.stream_create(&warm, 1));
    rp_stream *before = rp_current_stream(rp_cuda(0)), *s = rp_stream_wrap(rp_cuda(0), warm);
    rp_compiled *f =
        compiled ? rp_compile((rp_fn){model, NULL, 0, "model"}, NULL) : rp_plain((rp_fn){model, NULL, 0, "model"});
    rp_tensor *own[2] = {ramp(200, 0.01F), ramp(200, 0.02F)}, *in[2], *out = NULL, *want = NULL, *other = NULL;
    for (int k = 0; k < 2; k++) {
        in[k] = rp_from_blob(rp_data(own[k]), RP_DIMS(200), NULL, RP_F32, rp_cuda(0), NULL, NULL);
        OK(rp_declare_stable(in[k]));
    }
    OK(rp_set_current_stream(s));
    rp_stream_release(s); /* the thread alone holds it while programs are built */
    for (int k = 0; k < 3; k++) {
        rp_scope inner = rp_scope_begin();
        OK(rp_call(f, in, 2, &out, 1));
        OK(rp_scope_end(inner, NULL, 0));
    }
    OK(rp_synchronize(rp_cuda(0)));

    CU(cu.begin(native, 0));
    s = rp_stream_wrap(rp_cuda(0), native);
    OK(rp_set_current_stream(s));
    assert_true(rp_is_capturing(rp_cuda(0)));
    OK(rp_call(f, in, 2, &out, 1));
    (void)rp_rand(RP_DIMS(3));
    assert_int_equal(rp_error_take(), RP_ERROR_CAPTURE); /* no replay could go on in the generator */
    rp_stream_release(s);
    CU(cu.end(native, &graph));
    CU(cu.instantiate(&exec, graph, 0));

    s = rp_stream_wrap(rp_cuda(0), native);
    assert_false(rp_is_capturing(rp_cuda(0)));
    for (int k = 0; k < 4; k++) {
        (void)rp_copy_(in[0], rp_mul(in[0], in[1]));
        OK(RP_OK);
        model(NULL, in, 2, &want, 1);
        for (int i = 0; i < 3; i++) OK(rp_call(f, (rp_tensor *const[]){in[1], in[1]}, 2, &other, 1));
        CU(cu.launch(exec, native));
        near(out, want);
    }
    OK(rp_set_current_stream(before));
    rp_stream_release(s);
    destroy_recorded(native, exec, graph);
    rp_compiled_release(f);
    OK(rp_scope_end(scope, NULL, 0));
    OK(rp_synchronize(rp_cuda(0)));
    CU(cu.stream_destroy(warm));
    CU(cu.stream_destroy(native));
}

static void test_capture_of_a_compiled_call(void **state) {
    (void)state;
    capture(true);
}

static void test_capture_of_ops(void **state) {
    (void)state;
    capture(false);
}

static void drawing(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *h = rp_mul(rp_dropout(in[0], 0.5, RP_TRUE), rp_rand(RP_DIMS(200)));
    out[0] = rp_add(h, rp_add(rp_randn(RP_DIMS(200)), rp_poisson(rp_abs(in[0]))));
}

/* Draws of a graph that the owner captures read seed and first counter at each replay, one call behind the other, and those outside go on
   in the generator. */
static void capture_draws(bool compiled) {
    rp_scope scope = rp_scope_begin();
    void *native = NULL, *warm = NULL, *graph = NULL, *exec = NULL;
    CU(cu.stream_create(&native, 1));
    CU(cu.stream_create(&warm, 1));
    rp_stream *before = rp_current_stream(rp_cuda(0)), *s = rp_stream_wrap(rp_cuda(0), warm);
    rp_fn fn = {drawing, NULL, 0, "drawing"};
    rp_compiled *f = compiled ? rp_compile(fn, NULL) : rp_plain(fn);
    rp_generator *g = rp_default_generator(rp_cuda(0));
    rp_tensor *own = ramp(200, 0.01F),
              *in = rp_from_blob(rp_data(own), RP_DIMS(200), NULL, RP_F32, rp_cuda(0), NULL, NULL),
              *words = rp_from_data((int64_t[]){0, 0}, RP_DIMS(2), RP_I64), *out[2], *want[2], *outside = NULL,
              *same = NULL;
    OK(rp_declare_stable(in));
    OK(rp_set_current_stream(s));
    rp_stream_release(s);
    for (int k = 0; k < 3; k++) OK(rp_call(f, &in, 1, out, 1));
    OK(rp_synchronize(rp_cuda(0)));

    assert_int_equal(rp_generator_follow(g, (const uint64_t *)((uintptr_t)rp_data(words) + 4)),
                     RP_ERROR_INVALID_ARGUMENT);
    (void)rp_error_take();
    uint64_t seed = 0, offset = 0, now = 0;
    OK(rp_generator_get(g, &seed, &offset));
    CU(cu.begin(native, 0));
    s = rp_stream_wrap(rp_cuda(0), native);
    OK(rp_set_current_stream(s));
    OK(rp_generator_follow(g, rp_data(words)));
    for (int k = 0; k < 2; k++) OK(rp_call(f, &in, 1, &out[k], 1));
    OK(rp_generator_follow(g, NULL));
    (void)rp_rand(RP_DIMS(3));
    assert_int_equal(rp_error_take(), RP_ERROR_CAPTURE);
    rp_stream_release(s);
    CU(cu.end(native, &graph));
    CU(cu.instantiate(&exec, graph, 0));

    OK(rp_generator_get(g, &seed, &now)); /* nobody has said that the capture ended */
    assert_int_equal(now, offset);
    s = rp_stream_wrap(rp_cuda(0), native);
    for (int64_t k = 0; k < 4; k++) {
        const int64_t at[2] = {k == 3 ? 7 : 7 * k - 3, k == 3 ? 100 : INT64_C(1000000007) * k + 100};
        (void)rp_copy_(words, rp_from_data(at, RP_DIMS(2), RP_I64));
        OK(rp_generator_set(g, 11, 5));
        OK(rp_call(f, &in, 1, &outside, 1));
        CU(cu.launch(exec, native));
        OK(rp_generator_get(g, &seed, &now));
        OK(rp_generator_set(g, (uint64_t)at[0], (uint64_t)at[1]));
        for (int i = 0; i < 2; i++) drawing(NULL, &in, 1, &want[i], 1);
        for (int i = 0; i < 2; i++) near(out[i], want[i]);
        OK(rp_generator_set(g, 11, 5));
        drawing(NULL, &in, 1, &same, 1);
        near(outside, same);
        uint64_t again = 0;
        OK(rp_generator_get(g, &seed, &again));
        assert_int_equal(again, now);
    }
    OK(rp_set_current_stream(before));
    rp_stream_release(s);
    destroy_recorded(native, exec, graph);
    rp_compiled_release(f);
    OK(rp_scope_end(scope, NULL, 0));
    OK(rp_synchronize(rp_cuda(0)));
    CU(cu.stream_destroy(warm));
    CU(cu.stream_destroy(native));
}

static void test_capture_of_a_compiled_draw(void **state) {
    (void)state;
    capture_draws(true);
}

static void test_capture_of_draws(void **state) {
    (void)state;
    capture_draws(false);
}

/* Work and ends of tensors beside a capture that the library has not been told of: in the thread that captures, and in another. The allocator
   asks the driver about work that went before, which would end a capture in global mode. */
static void *work_beside(void *of) {
    rp_tensor **used = of;
    float v[256];
    rp_release(*used);
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = ramp(100, 0.5F), *got = rp_add(x, x);
    rp_status status = rp_to_host(got, v, (size_t)rp_numel(got) * sizeof *v);
    rp_stream *own = rp_stream_new(rp_cuda(0));
    rp_event *mark = rp_event_new(rp_cuda(0), false);
    if (status == RP_OK) status = rp_event_record(mark, own);
    if (status == RP_OK) status = rp_event_synchronize(mark);
    rp_event_release(mark);
    rp_stream_release(own);
    (void)rp_scope_end(scope, NULL, 0);
    *used = NULL;
    return status == RP_OK && !rp_failed() && v[3] == -3.0F ? of : NULL;
}

static void beside_a_capture(bool thread) {
    rp_scope scope = rp_scope_begin();
    void *native = NULL, *other = NULL, *graph = NULL, *result = NULL;
    CU(cu.stream_create(&native, 1));
    CU(cu.stream_create(&other, 1));
    rp_stream *before = rp_current_stream(rp_cuda(0)), *s = rp_stream_wrap(rp_cuda(0), other);
    rp_scope inner = rp_scope_begin();
    rp_tensor *used = rp_retain(ramp(200, 0.01F));
    OK(rp_set_current_stream(s));
    (void)rp_sin(used); /* memory of one stream that another one reads */
    OK(rp_set_current_stream(before));
    OK(rp_scope_end(inner, NULL, 0));
    rp_stream_release(s);

    CU(cu.begin(native, 0));
    pthread_t t;
    if (thread) {
        assert_int_equal(pthread_create(&t, NULL, work_beside, &used), 0);
        assert_int_equal(pthread_join(t, &result), 0);
    } else {
        result = work_beside(&used);
    }
    CU(cu.end(native, &graph));
    assert_non_null(result);
    CU(cu.graph_destroy(graph));
    OK(rp_scope_end(scope, NULL, 0));
    OK(rp_synchronize(rp_cuda(0)));
    CU(cu.stream_destroy(other));
    CU(cu.stream_destroy(native));
}

static void test_work_beside_a_capture(void **state) {
    (void)state;
    beside_a_capture(false);
}

static void test_work_beside_a_capture_of_another_thread(void **state) {
    (void)state;
    beside_a_capture(true);
}

/* A stream that cannot be followed into its owner's capture, for want of memory, is given up, and the capture goes on; an older error that nobody
   has taken is no reason. */
static void test_a_failed_adoption_leaves_the_capture(void **state) {
    (void)state;
    void *native = NULL, *graph = NULL;
    rp_stream *before = rp_current_stream(rp_cuda(0));
    CU(cu.stream_create(&native, 1));
    CU(cu.begin(native, 0));
    unsigned failed = 0;
    for (rp_status status = RP_ERROR_INTERNAL; status != RP_OK;) {
        rp_stream *s = rp_stream_wrap(rp_cuda(0), native);
        OK(rp_error_status());
        (void)rp__alloc_fail_at(failed + 1);
        status = rp_set_current_stream(s);
        (void)rp__alloc_fail_at(0);
        assert_int_equal(rp_error_take(), status);
        failed += status != RP_OK;
        assert_in_range(failed, 0, 100);
        OK(rp_set_current_stream(before));
        rp_stream_release(s);
    }
    assert_int_not_equal(failed, 0);
    (void)rp_event_query(NULL); /* an error that waits to be taken */
    rp_stream *s = rp_stream_wrap(rp_cuda(0), native);
    assert_int_equal(rp_set_current_stream(s), RP_OK);
    assert_int_equal(rp_set_current_stream(before), RP_OK);
    rp_stream_release(s);
    assert_int_not_equal(rp_error_take(), RP_OK);
    CU(cu.end(native, &graph));
    s = rp_stream_wrap(rp_cuda(0), native);
    OK(rp_set_current_stream(s));
    assert_false(rp_is_capturing(rp_cuda(0)));
    OK(rp_set_current_stream(before));
    rp_stream_release(s);
    CU(cu.graph_destroy(graph));
    CU(cu.stream_destroy(native));
}

int main(void) {
    if (!test_cuda_choose()) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_life, start),
        /* before captures, whose streams are kept: a new one may lie where an old one was */
        cmocka_unit_test_setup(test_a_failed_adoption_leaves_the_capture, start),
        cmocka_unit_test_setup(test_work, start), cmocka_unit_test_setup(test_capture_of_a_compiled_call, start),
        cmocka_unit_test_setup(test_capture_of_ops, start),
        cmocka_unit_test_setup(test_capture_of_a_compiled_draw, start),
        cmocka_unit_test_setup(test_capture_of_draws, start), cmocka_unit_test_setup(test_work_beside_a_capture, start),
        cmocka_unit_test_setup(test_work_beside_a_capture_of_another_thread, start)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
