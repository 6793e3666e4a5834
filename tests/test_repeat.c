/* Calls that repeat (ops/repeat.h): a call that was made before runs from what was kept of it, and gives what it gives in a
   thread that keeps nothing yet; a call that differs in any part of the key does not; what a key does not hold is looked at
   by every call. All calls of a thread fall on one place, so that nothing but the key tells them apart. */
/* ctest: labels=threads */
#include "support/check.h"

#include <pthread.h>
#include <stdio.h>

#include "core/alloc.h"
#include "kernel/cpu/tiles.h"
#include "ops/repeat.h"
#include "tensor/tensor.h"

/* ---- what a call gave */

typedef rp_tensor *call_fn(void);
enum { TEXT = 256, BYTES = 1024 };
typedef struct answer {
    rp_status status;
    char text[TEXT]; /* of the error */
    rp_dtype dtype;
    size_t ndim, bytes;
    int64_t size[8], stride[8];
    char data[BYTES];
} answer;

static void ask(call_fn *f, answer *a) {
    memset(a, 0, sizeof *a);
    rp_scope scope = rp_scope_begin();
    rp_tensor *t = f();
    if (!rp_failed()) {
        a->dtype = rp_dtype_of(t);
        a->ndim = rp_ndim(t);
        a->bytes = (size_t)rp_numel(t) * rp_dtype_size(a->dtype);
        for (size_t d = 0; d < a->ndim; d++) {
            a->size[d] = rp_size(t, (int64_t)d);
            a->stride[d] = rp_stride(t, (int64_t)d);
        }
        assert_true(a->ndim <= 8 && a->bytes <= BYTES);
        rp_to_host(t, a->data, a->bytes);
    }
    snprintf(a->text, sizeof a->text, "%s", rp_error_message());
    a->status = rp_error_take();
    rp_scope_end(scope, NULL, 0);
}

static void assert_equal_answers(const answer *a, const answer *b, const char *what) {
    if (a->status != b->status || strcmp(a->text, b->text)) fail_msg("%s: \"%s\", not \"%s\"", what, a->text, b->text);
    if (memcmp(a, b, sizeof *a)) fail_msg("%s: another result", what);
}

typedef struct errand {
    call_fn *f;
    answer *a;
} errand;
static void *run_errand(void *p) {
    const errand *e = p;
    ask(e->f, e->a);
    return NULL;
}
/* In a thread that keeps nothing. */
static void ask_anew(call_fn *f, answer *a) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_errand, &(errand){f, a}), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static uint64_t runs_of(call_fn *f, answer *a) {
    uint64_t before = rp__repeat_count();
    ask(f, a);
    return rp__repeat_count() - before;
}

/* ---- calls: each differs from its neighbours in one part of the key */

static rp_tensor *a16, *b16, *a16_other, *d16, *i16, *a8, *a44, *b44, *a28, *b4, *b41, *one, *scalar, *flags, *rows,
    *wide, *weight, *bias;

#define CALL(name, expression)                                                                                         \
    static rp_tensor *name(void) { return expression; }
CALL(add, rp_add(a16, b16))
CALL(sub, rp_sub(a16, b16))
CALL(add_of_f64, rp_add(d16, b16))
CALL(add_f64, rp_add(a16, d16))
CALL(add_int, rp_add(i16, i16))
CALL(add_2d, rp_add(a44, b44))
CALL(add_28, rp_add(a28, a28))
CALL(add_8, rp_add(a8, a8))
CALL(add_column_major, rp_add(rp_transpose(a44, 0, 1), b44))
CALL(add_to_column_major, rp_add(a44, rp_transpose(b44, 0, 1)))
CALL(add_row, rp_add(a44, b4))
CALL(add_column, rp_add(a44, b41))
CALL(add_one, rp_add(a44, scalar))
CALL(add_column_one, rp_add(b41, scalar))
CALL(add_row_one, rp_add(b4, one))
CALL(add_twice, rp_add(a16, b16, RP_OPTIONS(rp_add_options, .alpha = rp_i64(2))))
CALL(add_half, rp_add(a16, b16, RP_OPTIONS(rp_add_options, .alpha = rp_f64(0.5))))
CALL(add_once_float, rp_add(a16, b16))
CALL(add_gap, rp_add(rp_slice(wide, 0, 0, 32, 2), b16))
CALL(add_offset, rp_add(rp_slice(wide, 0, 1, 17, 1), b16))
CALL(add_other, rp_add(a16_other, b16))
CALL(add_wrong, rp_add(a16, a8))
CALL(add_float_to_int, rp_add(i16, i16, RP_OPTIONS(rp_add_options, .alpha = rp_f64(0.5))))
CALL(int_times_2, rp_mul_scalar(i16, rp_i64(2)))
CALL(int_times_2_float, rp_mul_scalar(i16, rp_f64(2)))
CALL(bool_times_true, rp_mul_scalar(flags, rp_bool(true)))
CALL(bool_times_1, rp_mul_scalar(flags, rp_i64(1)))
CALL(power_2, rp_pow_scalar(a16, rp_f64(2)))
CALL(power_third, rp_pow_scalar(a16, rp_f64(1.0 / 3)))
CALL(relu, rp_relu(a16))
CALL(to_f64, rp_to_dtype(a16, RP_F64))
CALL(to_i64, rp_to_dtype(a16, RP_I64))
CALL(to_f16, rp_to_dtype(a16, RP_F16))
CALL(sum_all, rp_sum(a44))
CALL(sum_0, rp_sum(a44, RP_DIMS(0)))
CALL(sum_1, rp_sum(a44, RP_DIMS(1)))
CALL(sum_01, rp_sum(a44, RP_DIMS(0, 1)))
CALL(sum_1_kept, rp_sum(a44, RP_DIMS(1), true))
CALL(sum_1_f64, rp_sum(a44, RP_DIMS(1), false, RP_OPTIONS(rp_sum_options, .dtype = RP_F64)))
CALL(softmax_0, rp_softmax(a44, 0))
CALL(softmax_1, rp_softmax(a44, 1))
CALL(norm, rp_native_layer_norm(a44, RP_DIMS(rp_size(a44, -1)), weight, bias, 1e-5, NULL, NULL))
CALL(norm_plain, rp_native_layer_norm(a44, RP_DIMS(rp_size(a44, -1)), NULL, bias, 1e-5, NULL, NULL))
CALL(norm_scaled, rp_native_layer_norm(a44, RP_DIMS(rp_size(a44, -1)), weight, NULL, 1e-5, NULL, NULL))
CALL(norm_eps, rp_native_layer_norm(a44, RP_DIMS(rp_size(a44, -1)), weight, bias, 0.5, NULL, NULL))
CALL(norm_2, rp_native_layer_norm(a44, RP_DIMS(rp_size(a44, -2), rp_size(a44, -1)), NULL, NULL, 1e-5, NULL, NULL))
CALL(choose, rp_where(rp_gt_scalar(a16, rp_f64(0)), a16, b16))
CALL(gathered, rp_gather(a44, 1, rows))
CALL(gathered_0, rp_gather(a44, 0, rows))
CALL(view_44, rp_view(a16, RP_DIMS(4, 4)))
CALL(view_28, rp_view(a16, RP_DIMS(2, 8)))
CALL(view_open, rp_view(a16, RP_DIMS(4, -1)))
CALL(view_offset, rp_view(rp_slice(wide, 0, 3, 19, 1), RP_DIMS(4, 4)))
CALL(view_offset_0, rp_view(rp_slice(wide, 0, 0, 16, 1), RP_DIMS(4, 4)))
CALL(view_16, rp_view(a16, RP_DIMS(16)))
CALL(view_16_1, rp_view(a16, RP_DIMS(16, 1)))
CALL(turned, rp_transpose(a44, 0, 1))
CALL(not_turned, rp_transpose(a44, 1, 1))
CALL(row_1, rp_select(a44, 0, 1))
CALL(row_2, rp_select(a44, 0, 2))
CALL(column_1, rp_select(a44, 1, 1))
CALL(all_from_1, rp_slice(a16, 0, 1, INT64_MIN, 1))
CALL(all_to_1, rp_slice(a16, 0, INT64_MIN, 1, 1))
CALL(every_third, rp_slice(a16, 0, 1, INT64_MIN, 3))
CALL(added, rp_add_(rp_clone(a16), b16))
CALL(added_to_itself, rp_mul_(rp_clone(a16), a16))
CALL(filled, rp_fill_(rp_clone(a16), rp_f64(3)))
CALL(filled_int, rp_fill_(rp_clone(i16), rp_f64(3)))
CALL(filled_places, rp_fill_(rp_expand(rp_clone(b41), RP_DIMS(4, 4)), rp_f64(3)))
CALL(copied, rp_copy_(rp_clone(d16), b16))
CALL(copied_row, rp_copy_(rp_clone(a44), b4))
CALL(nothing, rp_add(rp_slice(a16, 0, 4, 4, 1), rp_slice(b16, 0, 4, 4, 1)))

#define NAMED(name)                                                                                                    \
    { #name, name }
static const struct named {
    const char *name;
    call_fn *f;
} calls[] = {
    NAMED(add),
    NAMED(sub),
    NAMED(add_of_f64),
    NAMED(add_f64),
    NAMED(add_int),
    NAMED(add_2d),
    NAMED(add_28),
    NAMED(add_8),
    NAMED(add_column_major),
    NAMED(add_to_column_major),
    NAMED(add_row),
    NAMED(add_column),
    NAMED(add_one),
    NAMED(add_twice),
    NAMED(add_half),
    NAMED(add_gap),
    NAMED(add_offset),
    NAMED(add_once_float),
    NAMED(add_other),
    NAMED(add_wrong),
    NAMED(int_times_2),
    NAMED(bool_times_true),
    NAMED(add_float_to_int),
    NAMED(int_times_2_float),
    NAMED(bool_times_1),
    NAMED(power_2),
    NAMED(power_third),
    NAMED(relu),
    NAMED(to_f64),
    NAMED(to_i64),
    NAMED(to_f16),
    NAMED(sum_all),
    NAMED(sum_0),
    NAMED(sum_1),
    NAMED(sum_01),
    NAMED(sum_1_kept),
    NAMED(sum_1_f64),
    NAMED(softmax_0),
    NAMED(softmax_1),
    NAMED(norm),
    NAMED(norm_plain),
    NAMED(norm_scaled),
    NAMED(norm_eps),
    NAMED(norm_2),
    NAMED(choose),
    NAMED(gathered),
    NAMED(gathered_0),
    NAMED(view_44),
    NAMED(view_28),
    NAMED(view_open),
    NAMED(view_offset),
    NAMED(turned),
    NAMED(view_offset_0),
    NAMED(not_turned),
    NAMED(row_1),
    NAMED(row_2),
    NAMED(column_1),
    NAMED(all_from_1),
    NAMED(all_to_1),
    NAMED(every_third),
    NAMED(added),
    NAMED(filled),
    NAMED(added_to_itself),
    NAMED(filled_int),
    NAMED(copied),
    NAMED(view_16),
    NAMED(view_16_1),
    NAMED(add_column_one),
    NAMED(add_row_one),
    NAMED(copied_row),
    NAMED(nothing),
    NAMED(filled_places),
};
enum { N_CALLS = sizeof calls / sizeof *calls };
static answer expected[N_CALLS];

static int set_up(void **state) {
    (void)state;
    rp_manual_seed(3);
    a16 = rp_randn(RP_DIMS(16));
    b16 = rp_randn(RP_DIMS(16));
    a16_other = rp_randn(RP_DIMS(16));
    d16 = rp_randn(RP_DIMS(16), RP_OPTIONS(rp_randn_options, .dtype = RP_F64));
    i16 = rp_to_dtype(rp_mul_scalar(a16, rp_i64(10)), RP_I64);
    a8 = rp_randn(RP_DIMS(8));
    a44 = rp_randn(RP_DIMS(4, 4));
    b44 = rp_randn(RP_DIMS(4, 4));
    a28 = rp_randn(RP_DIMS(2, 8));
    b4 = rp_randn(RP_DIMS(4));
    b41 = rp_randn(RP_DIMS(4, 1));
    one = rp_randn(RP_DIMS(1));
    scalar = rp_randn(RP_NO_DIMS);
    flags = rp_gt_scalar(a16, rp_f64(0));
    rows = rp_from_data(((const int64_t[]){3, 0, 1, 2, 2, 2, 0, 1}), RP_DIMS(4, 2), RP_I64);
    wide = rp_randn(RP_DIMS(32));
    weight = rp_randn(RP_DIMS(4));
    bias = rp_randn(RP_DIMS(4));
    return rp_error_take() == RP_OK ? 0 : -1;
}

/* After each call was kept, every other one, once, and it again. */
static void test_key(void **state) {
    (void)state;
    rp__repeat_one_place(true);
    for (int i = 0; i < N_CALLS; i++) ask_anew(calls[i].f, &expected[i]);
    for (int i = 0; i < N_CALLS; i++) {
        for (int k = 0; k < N_CALLS; k++) {
            char what[128];
            answer a;
            for (int n = 0; n < 3; n++) {
                ask(calls[i].f, &a);
                assert_equal_answers(&a, &expected[i], calls[i].name);
            }
            snprintf(what, sizeof what, "%s after %s", calls[k].name, calls[i].name);
            ask(calls[k].f, &a);
            assert_equal_answers(&a, &expected[k], what);
        }
    }
    rp__repeat_one_place(false);
}

/* Calls that are one op are kept: the third time at the latest they are run from what is kept. */
static void test_kept(void **state) {
    (void)state;
    static call_fn *const kept[] = {add,       sub,  add_of_f64, add_row, add_one, add_twice, relu,      to_f64, sum_0,
                                    softmax_1, norm, norm_plain, view_44, turned,  row_1,     add_wrong, NULL};
    for (int i = 0; kept[i]; i++) {
        answer a;
        ask(kept[i], &a);
        ask(kept[i], &a);
        assert_int_equal(runs_of(kept[i], &a), kept[i] == add_wrong ? 0 : 1);
    }
}

/* ---- what the key does not hold */

static rp_tensor *target, *source;
CALL(add_to_target, rp_add_(target, source))

static void learn(call_fn *f) {
    answer a;
    for (int i = 0; i < 3; i++) ask(f, &a);
    assert_true(runs_of(f, &a) > 0);
}

static void test_overlaps(void **state) {
    (void)state;
    float got[16];
    target = rp_zeros(RP_DIMS(16));
    source = rp_ones(RP_DIMS(16));
    uint64_t version = rp_version(target);
    learn(add_to_target);
    assert_int_equal(rp_version(target), version + 4); /* every call wrote it */
    OK(rp_to_host(target, got, sizeof got));
    assert_true(got[7] == 4);

    rp_tensor *row = rp_zeros(RP_DIMS(1, 4)); /* whose every place is written once, by a kernel of another space */
    for (int i = 1; i < 6; i++) {
        rp_fill_(rp_expand(row, RP_DIMS(3, 4)), rp_f64(i));
        OK(rp_to_host(row, got, 4 * sizeof *got));
        assert_true(got[3] == (float)i);
    }

    source = target; /* the same elements */
    (void)add_to_target();
    OK(rp_to_host(target, got, sizeof got));
    assert_true(got[7] == 8);

    rp_tensor *memory = rp_ones(RP_DIMS(32));
    target = rp_slice(memory, 0, 0, 16, 1);
    source = rp_slice(memory, 0, 16, 32, 1); /* beside each other */
    (void)add_to_target();
    source = rp_slice(memory, 0, 1, 17, 1); /* shifted */
    (void)add_to_target();
    FAILS(RP_ERROR_INVALID_ARGUMENT, "some elements of the input tensor and the written-to tensor", rp_error_status());
    OK(rp_to_host(target, got, sizeof got));
    assert_true(got[7] == 2); /* the refused call wrote nothing */

    static float bytes[32]; /* two storages over the same memory */
    target = rp_from_blob(bytes, RP_DIMS(16), NULL, RP_F32, rp_cpu(), NULL, NULL);
    source = rp_from_blob(bytes + 4, RP_DIMS(16), NULL, RP_F32, rp_cpu(), NULL, NULL);
    (void)add_to_target();
    FAILS(RP_ERROR_INVALID_ARGUMENT, "some elements of the input tensor and the written-to tensor", rp_error_status());
}

static void test_gradients(void **state) {
    (void)state;
    learn(add);
    rp_tensor *x = rp_clone(a16), *plain = a16;
    OK(rp_set_requires_grad(x, true));
    a16 = x;
    rp_tensor *y = add();
    a16 = plain;
    OK(rp_backward(rp_sum(y), NULL, NULL));
    assert_non_null(rp_grad_of(x));
    assert_true(rp_item_f64(rp_sum(rp_grad_of(x))) == 16);
    bool before = rp_set_grad_enabled(false);
    a16 = x;
    assert_true(rp_is_leaf(add()));
    a16 = plain;
    rp_set_grad_enabled(before);
}

static void sum_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *plain = a16;
    a16 = in[0];
    out[0] = rp_relu(add());
    a16 = plain;
}

/* A trace sees calls that the thread keeps. */
static void test_trace(void **state) {
    (void)state;
    answer kept, traced;
    learn(add);
    learn(relu);
    rp_compiled *f = rp_compile((rp_fn){sum_body, NULL, 0, "sum"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int i = 0; i < 4; i++) {
        rp_tensor *out = NULL, *x = rp_randn(RP_DIMS(16)), *want;
        OK(rp_call(f, &x, 1, &out, 1));
        rp_tensor *plain = a16;
        a16 = x;
        want = rp_relu(add());
        a16 = plain;
        assert_true(rp_item_f64(rp_sum(rp_abs(rp_sub(out, want)))) == 0);
    }
    rp_compiled_release(f);
    rp_ir *ir = rp_trace((rp_fn){sum_body, NULL, 0, "sum"}, &a16, 1, 1);
    char text[2048];
    assert_true(rp_ir_text(ir, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "add"));
    rp_ir_release(ir);
    ask(add, &kept);
    ask_anew(add, &traced);
    assert_equal_answers(&kept, &traced, "after a trace");
}

/* A tensor that a trace knows may have no memory yet. */
static void test_pending(void **state) {
    (void)state;
    answer a;
    learn(add);
    a16->traced = (struct rp__trace_value *)(void *)&a;
    uint64_t runs = runs_of(add, &a);
    a16->traced = NULL;
    assert_int_equal(runs, 0);
    assert_int_equal(runs_of(add, &a), 1);
}

/* What is launched on a stream that queues or captures is not run at once. */
static void test_streams(void **state) {
    (void)state;
    float got[16], want[16];
    learn(add);
    rp_graph *g = rp_graph_new();
    rp_tensor *x = rp_clone(a16), *plain = a16;
    a16 = x;
    OK(rp_graph_begin(g, rp_cpu(), NULL));
    rp_tensor *y = add();
    OK(rp_graph_end(g));
    (void)rp_fill_(x, rp_f64(2));
    OK(rp_graph_replay(g));
    OK(rp_synchronize(rp_cpu()));
    rp_tensor *again = add();
    a16 = plain;
    OK(rp_to_host(y, got, sizeof got));
    OK(rp_to_host(again, want, sizeof want));
    assert_memory_equal(got, want, sizeof got);
    rp_graph_release(g);

    rp_stream *side = rp_stream_new(rp_cpu()), *before = rp_current_stream(rp_cpu());
    OK(rp_set_current_stream(side));
    uint64_t runs = rp__repeat_count();
    y = add();
    assert_int_equal(rp__repeat_count(), runs);
    OK(rp_stream_synchronize(side));
    OK(rp_set_current_stream(before));
    OK(rp_to_host(y, got, sizeof got));
    OK(rp_to_host(add(), want, sizeof want));
    assert_memory_equal(got, want, sizeof got);
    rp_stream_release(side);
}

static void count_kernels(void *ctx, const char *op, const char *site, const char *loop, const char *c_source,
                          const char *cuda_source) {
    (void)op, (void)site, (void)loop, (void)c_source, (void)cuda_source;
    ++*(int *)ctx;
}

static void test_log(void **state) {
    (void)state;
    int n = 0;
    learn(add);
    void *old_ctx;
    rp_kernel_log *old = rp_set_kernel_log(count_kernels, &n, &old_ctx);
    (void)add();
    (void)add();
    rp_set_kernel_log(old, old_ctx, NULL);
    assert_int_equal(n, 2);
}

/* Another instruction set has kernels of its own. */
static void test_instruction_sets(void **state) {
    (void)state;
    static const char *const names[] = {"baseline", "avx2", "avx512"};
    static call_fn *const some[] = {add, add_row, softmax_1, power_third};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        answer want, got;
        rp__tiles_set(NULL);
        learn(some[i]);
        ask(some[i], &want);
        for (size_t k = 0; k < 3; k++) {
            if (!rp__tiles_named(names[k])) continue;
            const bool same = rp__tiles_named(names[k]) == rp__tiles_current();
            rp__tiles_set(rp__tiles_named(names[k]));
            assert_int_equal(runs_of(some[i], &got), same);
            assert_equal_answers(&got, &want, names[k]);
            learn(some[i]);
        }
    }
    rp__tiles_set(NULL);
}

/* The error that a kernel finds names the line of the call that met it. */
static void test_error_lines(void **state) {
    (void)state;
    rp_tensor *good = rows;
    learn(gathered);
    rows = rp_from_data(((const int64_t[]){3, 0, 1, 2, 9, 2, 0, 1}), RP_DIMS(4, 2), RP_I64);
    uint64_t runs = rp__repeat_count();
    (void)rp_item_f64(rp_sum(rp_gather_at("here:7", a44, 1, rows, NULL)));
    assert_true(rp__repeat_count() > runs);
    assert_non_null(strstr(rp_error_message(), "here:7"));
    FAILS(RP_ERROR_INDEX, "gather", rp_error_status());
    (void)rp_item_f64(rp_sum(rp_gather_at("there:8", a44, 1, rows, NULL)));
    FAILS(RP_ERROR_INDEX, "there:8", rp_error_status());
    rows = good;
}

/* A handle of a call that repeats says who made it: this op, at this line. */
static void test_sites(void **state) {
    (void)state;
    learn(relu);
    rp_tensor *t = rp_relu_at("here:9", a16);
    assert_string_equal(t->op, "relu");
    assert_string_equal(t->site, "here:9");
}

CALL(drawn, rp_dropout(a16, 0.5, true))
static void test_draws(void **state) {
    (void)state;
    answer first, next;
    rp_manual_seed(5);
    for (int i = 0; i < 4; i++) ask(drawn, i ? &next : &first);
    assert_true(memcmp(first.data, next.data, first.bytes) != 0);
    rp_manual_seed(5);
    ask(drawn, &next);
    assert_equal_answers(&next, &first, "the same seed");
}

/* Out of memory a call that repeats fails, with its results the error tensor, and leaves nothing. */
static void test_no_memory(void **state) {
    (void)state;
    target = rp_zeros(RP_DIMS(16));
    source = rp_ones(RP_DIMS(16));
    static call_fn *const some[] = {add, norm, view_44, add_to_target};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        learn(some[i]);
        uint64_t live = rp__alloc_live();
        for (uint64_t n = 1;; n++) {
            rp_scope scope = rp_scope_begin();
            rp__alloc_fail_at(n);
            rp_tensor *t = some[i]();
            bool reached = rp_failed();
            rp__alloc_fail_at(0);
            if (reached) {
                assert_true(rp_is_error(t));
                assert_int_equal(rp_error_take(), RP_ERROR_OUT_OF_MEMORY);
            }
            rp_scope_end(scope, NULL, 0);
            if (!reached) break;
        }
        assert_int_equal(rp__alloc_live(), live);
    }
}

/* A step of a hundred kinds of calls: none drives the kernel of another out, so that a turn makes nothing that the turn
   before it made. */
typedef rp_tensor *unary(rp_tensor *);
static uint64_t one_turn(rp_tensor *const *in, size_t n) {
    static unary *const some[] = {(rp_cos),  (rp_sin),   (rp_tan),   (rp_exp),   (rp_log),   (rp_sqrt),
                                  (rp_abs),  (rp_neg),   (rp_tanh),  (rp_relu),  (rp_floor), (rp_ceil),
                                  (rp_erf),  (rp_expm1), (rp_log1p), (rp_log2),  (rp_rsqrt), (rp_sigmoid),
                                  (rp_silu), (rp_trunc), (rp_asin),  (rp_acos),  (rp_atan),  (rp_square),
                                  (rp_sign), (rp_sinh),  (rp_cosh),  (rp_log10), (rp_exp2),  (rp_reciprocal)};
    rp_scope scope = rp_scope_begin();
    uint64_t before = rp__lower_built();
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        for (size_t k = 0; k < n; k++) (void)some[i](in[k]);
    uint64_t made = rp__lower_built() - before;
    assert_int_equal(rp_error_take(), RP_OK);
    rp_scope_end(scope, NULL, 0);
    return made;
}

static void test_many_kinds(void **state) {
    (void)state;
    static const rp_dtype types[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
    rp_tensor *in[4];
    for (size_t k = 0; k < 4; k++)
        in[k] = rp_full(RP_DIMS(4), rp_f64(0.5), RP_OPTIONS(rp_full_options, .dtype = types[k]));
    uint64_t first = one_turn(in, 4);
    if (first < 100) fail_msg("%llu kinds only", (unsigned long long)first);
    assert_int_equal(one_turn(in, 4), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_key, take_error),
        cmocka_unit_test_teardown(test_kept, take_error),
        cmocka_unit_test_teardown(test_overlaps, take_error),
        cmocka_unit_test_teardown(test_gradients, take_error),
        cmocka_unit_test_teardown(test_trace, take_error),
        cmocka_unit_test_teardown(test_pending, take_error),
        cmocka_unit_test_teardown(test_streams, take_error),
        cmocka_unit_test_teardown(test_log, take_error),
        cmocka_unit_test_teardown(test_instruction_sets, take_error),
        cmocka_unit_test_teardown(test_error_lines, take_error),
        cmocka_unit_test_teardown(test_sites, take_error),
        cmocka_unit_test_teardown(test_draws, take_error),
        cmocka_unit_test_teardown(test_no_memory, take_error),
        cmocka_unit_test_teardown(test_many_kinds, take_error),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
