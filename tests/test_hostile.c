/* Hostile callers: every public function of reprise.h with arguments that no program should pass. Each call must come back
   with an error and leave nothing behind; only the public header is used. */
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reprise.h"
#include "reprise_nn.h"

static rp_tensor *wrong; /* the error tensor */

static rp_tensor *error_tensor(void) {
    rp_tensor *t = rp_relu(NULL);
    rp_error_take();
    return t;
}

static rp_tensor *ones(int64_t n) { return rp_full(RP_DIMS(n), rp_i64(1), RP_F32); }

static uint64_t live(void) {
    rp_memory_stats s = {.struct_size = sizeof s};
    assert_int_equal(rp_memory_stats_get(rp_cpu(), &s), RP_OK);
    return s.live_tensors;
}

/* The action fails, and the sticky error says the same with a message. */
#define refuses(action)                                                                                                \
    do {                                                                                                               \
        assert_false(rp_failed());                                                                                     \
        rp_status refuses_ = (action);                                                                                 \
        if (refuses_ == RP_OK || !rp_failed() || !*rp_error_message())                                                 \
            fail_msg("line %d: %s: status %s, sticky %s '%s'", __LINE__, #action, rp_status_name(refuses_),            \
                     rp_status_name(rp_error_status()), rp_error_message());                                           \
        assert_int_equal(rp_error_take(), refuses_);                                                                   \
    } while (0)
/* The op gives the error tensor, and its message names the op and this file. */
#define fails(op)                                                                                                      \
    do {                                                                                                               \
        assert_false(rp_failed());                                                                                     \
        rp_tensor *fails_ = (op);                                                                                      \
        if (!fails_ || !rp_is_error(fails_) || !rp_failed() || !strstr(rp_error_message(), "test_hostile.c:"))         \
            fail_msg("line %d: %s: '%s'", __LINE__, #op, rp_error_message());                                          \
        rp_error_take();                                                                                               \
    } while (0)
/* The function has no status: a sticky error tells. */
#define complains(call)                                                                                                \
    do {                                                                                                               \
        assert_false(rp_failed());                                                                                     \
        (void)(call);                                                                                                  \
        if (!rp_failed() || !*rp_error_message()) fail_msg("line %d: %s: no error", __LINE__, #call);                  \
        rp_error_take();                                                                                               \
    } while (0)

static void accessors_answer_anything(void **state) {
    (void)state;
    rp_tensor *bad[] = {NULL, wrong};
    char text[8];
    for (int i = 0; i < 2; i++) {
        rp_tensor *t = bad[i];
        assert_true(rp_is_error(t) || !t);
        (void)rp_ndim(t);
        (void)rp_numel(t);
        (void)rp_dtype_of(t);
        (void)rp_device_of(t);
        (void)rp_is_contiguous(t);
        (void)rp_version(t);
        (void)rp_requires_grad(t);
        (void)rp_is_leaf(t);
        (void)rp_grad_of(t);
        rp_error_take();
        assert_int_equal(rp_ndim(t), 0);
        rp_error_take();
        (void)rp_size(t, 0);
        (void)rp_stride(t, 0);
        rp_error_take();
        assert_null(rp_data(t));
        assert_int_not_equal(rp_error_take(), RP_OK);
        refuses(rp_to_host(t, text, 4));
        complains(rp_item(t));
        assert_int_equal(rp_item(t).v.i, 0);
        rp_error_take();
        complains(rp_item_f64(t));
        complains(rp_item_i64(t));
        complains(rp_format(t, text, sizeof text));
        refuses(rp_set_requires_grad(t, true));
        refuses(rp_set_grad(t, NULL));
        refuses(rp_retain_grad(t));
        refuses(rp_backward(t, NULL, NULL));
        complains(rp_register_hook(t, NULL, NULL));
        refuses(rp_remove_hook(t, 1));
        assert_null(rp_to_dlpack(t));
        assert_int_not_equal(rp_error_take(), RP_OK);
        (void)rp_retain(t);
        rp_error_take();
        rp_release(t);
        assert_false(rp_failed());
    }
}

static void names_and_numbers_out_of_range(void **state) {
    (void)state;
    assert_non_null(rp_status_name((rp_status)-1));
    assert_non_null(rp_status_name((rp_status)1000));
    assert_non_null(rp_dtype_name((rp_dtype)99));
    assert_non_null(rp_dtype_name((rp_dtype)-1));
    assert_int_equal(rp_dtype_size((rp_dtype)99), 0);
    assert_int_equal(rp_dtype_size((rp_dtype)-5), 0);
    rp_error_take();
    rp_device nowhere[] = {{(rp_device_type)7, 0},
                           {RP_DEVICE_CPU, 1},
                           {RP_DEVICE_CPU, -1},
                           {RP_DEVICE_CUDA, -3},
                           {RP_DEVICE_CUDA, INT32_MAX}};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        rp_memory_stats s = {.struct_size = sizeof s};
        assert_false(rp_device_available(nowhere[i]));
        rp_error_take();
        refuses(rp_set_default_device(nowhere[i]));
        refuses(rp_synchronize(nowhere[i]));
        refuses(rp_memory_stats_get(nowhere[i], &s));
        refuses(rp_memory_stats_reset_peak(nowhere[i]));
        refuses(rp_empty_cache(nowhere[i]));
        complains(rp_default_generator(nowhere[i]));
        rp_generator *g = rp_generator_new(nowhere[i], 1);
        assert_non_null(g);
        rp_error_take();
        refuses(rp_generator_seed(g, 1));
        fails(rp_randn(RP_DIMS(2), RP_F32, g));
        rp_generator_release(g);
        rp_stream *s2 = rp_stream_new(nowhere[i]);
        rp_error_take();
        refuses(rp_set_current_stream(s2));
        refuses(rp_stream_synchronize(s2));
        complains(rp_stream_query(s2));
        rp_stream_release(s2);
        complains(rp_current_stream(nowhere[i]));
        rp_event *e = rp_event_new(nowhere[i], true);
        rp_error_take();
        refuses(rp_event_record(e, NULL));
        refuses(rp_event_synchronize(e));
        complains(rp_event_query(e));
        rp_event_release(e);
        rp_pool *p = rp_pool_new(nowhere[i]);
        rp_error_take();
        rp_pool_release(p);
        (void)rp_is_capturing(nowhere[i]);
        rp_error_take();
        float x = 0;
        complains(rp_from_blob(&x, NULL, 0, NULL, RP_F32, nowhere[i], NULL, NULL));
    }
    assert_int_equal(rp_device_count((rp_device_type)9), 0);
    rp_error_take();
    refuses(rp_set_num_threads(0));
    refuses(rp_set_num_threads(INT_MIN));
    assert_true(rp_num_threads() >= 1);
    complains(rp_backend_name(SIZE_MAX));
    rp_op_info info;
    refuses(rp_op_info_at(rp_op_count(), &info));
    refuses(rp_op_info_at(0, NULL));
    for (size_t i = 0; i < rp_op_count(); i++) {
        assert_int_equal(rp_op_info_at(i, &info), RP_OK);
        assert_non_null(info.name);
        assert_non_null(info.schema);
        assert_true(info.doc && *info.doc);
        assert_non_null(info.lowering);
    }
}

static int deleted;
static void deleter(void *ctx) {
    (void)ctx;
    deleted++;
}

static void factories_refuse(void **state) {
    (void)state;
    static const int64_t seventeen[17] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const int64_t huge = INT64_C(1) << 62;
    float x[4] = {1, 2, 3, 4};
    const int64_t far = INT64_C(1) << 33;
    rp_tensor *i32 = rp_full(RP_DIMS(1), rp_i64(2), RP_I32);
    fails(rp_add(i32, i32, rp_i64(far)));
    fails(rp_sub(i32, i32, rp_i64(INT64_MIN)));
    fails(rp_add_(i32, i32, rp_i64(far)));
    fails(rp_add(ones(1), ones(1), rp_f64(1e300)));
    fails(rp_from_data(x, NULL, 1, RP_F32));
    fails(rp_from_data(NULL, RP_DIMS(2), RP_F32));
    fails(rp_from_data(x, RP_DIMS(-1), RP_F32));
    fails(rp_from_data(x, RP_DIMS(huge), RP_F32));
    fails(rp_from_data(x, RP_DIMS(huge, huge), RP_U8));
    fails(rp_from_data(x, RP_DIMS(1), (rp_dtype)77));
    fails(rp_from_data(x, RP_DIMS(1), RP_DTYPE_NONE));
    fails(rp_from_data(x, seventeen, 17, RP_F32));
    fails(rp_from_data(x, seventeen, SIZE_MAX, RP_F32));
    fails(rp_zeros(RP_DIMS(huge), RP_F32));
    fails(rp_zeros(RP_DIMS(huge), RP_U8));
    fails(rp_zeros(RP_DIMS(-2), RP_F32));
    fails(rp_zeros(NULL, 2, RP_F32));
    fails(rp_zeros(seventeen, 17, RP_F32));
    fails(rp_zeros(seventeen, SIZE_MAX, RP_F32));
    fails(rp_zeros(RP_DIMS(2), (rp_dtype)77));
    fails(rp_zeros(RP_DIMS(2), (rp_dtype)-1));
    fails(rp_empty(RP_DIMS(huge, huge), RP_F64));
    fails(rp_full(RP_DIMS(2), (rp_scalar){.kind = (rp_scalar_kind)9}, RP_F32));
    fails(rp_arange(rp_i64(0), rp_i64(1), rp_i64(0), RP_DTYPE_NONE));
    fails(rp_arange(rp_i64(1), rp_i64(0), rp_i64(1), RP_DTYPE_NONE));
    fails(rp_arange(rp_i64(INT64_MIN), rp_i64(INT64_MAX), rp_i64(1), RP_DTYPE_NONE));
    fails(rp_arange(rp_f64(0), rp_f64(1.0 / 0.0), rp_f64(1), RP_DTYPE_NONE));
    fails(rp_arange(rp_f64(0.0 / 0.0), rp_f64(1), rp_f64(1), RP_DTYPE_NONE));
    fails(rp_arange(rp_f64(0), rp_f64(1), rp_f64(1e-300), RP_DTYPE_NONE));
    fails(rp_randn(RP_DIMS(2), RP_I64, NULL));
    fails(rp_randn(RP_DIMS(-2), RP_F32, NULL));
    /* blobs: the deleter runs at once */
    const int64_t two = 2, many = INT64_MAX, minus = -1;
    deleted = 0;
    complains(rp_from_blob(NULL, &two, 1, NULL, RP_F32, rp_cpu(), deleter, NULL));
    complains(rp_from_blob(x, NULL, 1, NULL, RP_F32, rp_cpu(), deleter, NULL));
    complains(rp_from_blob(x, &minus, 1, NULL, RP_F32, rp_cpu(), deleter, NULL));
    complains(rp_from_blob(x, &two, 1, &many, RP_F32, rp_cpu(), deleter, NULL));
    complains(rp_from_blob(x, &two, 1, &minus, RP_F32, rp_cpu(), deleter, NULL));
    complains(rp_from_blob(x, &many, 1, NULL, RP_F32, rp_cpu(), deleter, NULL));
    complains(rp_from_blob(x, &two, 1, NULL, (rp_dtype)55, rp_cpu(), deleter, NULL));
    complains(rp_from_blob(x, seventeen, 17, NULL, RP_F32, rp_cpu(), deleter, NULL));
    complains(rp_from_blob(x, &two, 1, NULL, RP_F32, (rp_device){(rp_device_type)4, 0}, deleter, NULL));
    assert_int_equal(deleted, 9);
    assert_true(rp_is_error(rp_from_dlpack(NULL)));
    assert_int_not_equal(rp_error_take(), RP_OK);
}

static void ops_refuse(void **state) {
    (void)state;
    const int64_t huge = INT64_C(1) << 62;
    rp_tensor *a = ones(6), *m = rp_view(a, RP_DIMS(2, 3)), *scalar = rp_full(RP_NO_DIMS, rp_i64(1), RP_F32);
    rp_tensor *i64 = rp_arange(rp_i64(0), rp_i64(6), rp_i64(1), RP_I64);
    rp_tensor *out1 = NULL;
    fails(rp_view(a, RP_DIMS(-1, -1)));
    fails(rp_view(a, RP_DIMS(-1, 0)));
    fails(rp_view(a, RP_DIMS(huge, 4)));
    fails(rp_view(a, RP_DIMS(-2, 3)));
    fails(rp_view(a, NULL, 2));
    fails(rp_reshape(a, RP_DIMS(4, huge, 4)));
    fails(rp_expand(a, RP_DIMS(-2, 6)));
    fails(rp_expand(a, RP_DIMS(huge, 6)));
    fails(rp_expand(m, RP_DIMS(3)));
    fails(rp_permute(m, RP_DIMS(0, 0)));
    fails(rp_permute(m, RP_DIMS(0)));
    fails(rp_permute(m, RP_DIMS(INT64_MIN, 1)));
    fails(rp_select(m, 0, INT64_MIN));
    fails(rp_select(m, 0, 2));
    fails(rp_select(m, 2, 0));
    fails(rp_select(scalar, 0, 0));
    fails(rp_slice(m, 0, 0, 1, 0));
    fails(rp_slice(m, 0, 0, 1, -1));
    assert_int_equal(rp_numel(rp_slice(a, 0, INT64_MIN, INT64_MAX, INT64_MAX)), 1);
    assert_int_equal(rp_numel(rp_slice(a, 0, INT64_MAX, INT64_MIN, 1)), 0);
    fails(rp_cat(NULL, 2, 0));
    fails(rp_cat(NULL, 0, 0));
    fails(rp_cat(RP_TENSORS(a, NULL), 0));
    fails(rp_cat(RP_TENSORS(a, wrong), 0));
    fails(rp_cat((rp_tensor *const[]){a}, SIZE_MAX, 0));
    fails(rp_cat(RP_TENSORS(scalar, scalar), 0));
    fails(rp_sum(m, RP_DIMS(0, 0), false, RP_DTYPE_NONE));
    fails(rp_sum(m, RP_DIMS(2), false, RP_DTYPE_NONE));
    fails(rp_sum(m, NULL, 3, false, RP_DTYPE_NONE));
    fails(rp_sum(m, RP_NO_DIMS, false, (rp_dtype)66));
    fails(rp_softmax(m, INT64_MAX));
    fails(rp_softmax(i64, 0));
    fails(rp_add(a, NULL, rp_i64(1)));
    fails(rp_add(NULL, a, rp_i64(1)));
    fails(rp_add(wrong, a, rp_i64(1)));
    fails(rp_add(a, a, (rp_scalar){.kind = (rp_scalar_kind)12}));
    fails(rp_add(i64, i64, rp_f64(0.5)));
    fails(rp_add(a, ones(5), rp_i64(1)));
    fails(rp_mul_(i64, a));
    fails(rp_copy_(wrong, a));
    fails(rp_copy_(a, ones(5)));
    fails(rp_mul_(rp_expand(ones(1), RP_DIMS(4)), ones(4)));
    fails(rp_matmul(a, scalar));
    fails(rp_matmul(m, m));
    fails(rp_matmul(m, i64));
    fails(rp_linear(m, m, ones(7)));
    fails(rp_linear(m, NULL, NULL));
    fails(rp_gather(m, 0, a));
    fails(rp_gather(a, 0, ones(2)));
    fails(rp_embedding(m, a));
    fails(rp_topk(a, 7, 0, true, true, &out1));
    fails(rp_topk(a, -1, 0, true, true, NULL));
    fails(rp_topk(wrong, 1, 0, true, true, &out1));
    assert_true(out1 == NULL || rp_is_error(out1));
    fails(rp_multinomial(a, 0, true, NULL));
    fails(rp_multinomial(a, 7, false, NULL));
    fails(rp_multinomial(i64, 1, false, NULL));
    rp_tensor *image = rp_full(RP_DIMS(1, 1, 4, 4), rp_i64(1), RP_F32);
    fails(rp_conv2d(image, image, NULL, RP_DIMS(0, 0), RP_DIMS(0, 0), RP_DIMS(1, 1), 1));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(-1, 0), RP_DIMS(1, 1), 1));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(0, 1), 1));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(1, 1), 0));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(huge, huge), RP_DIMS(1, 1), 1));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(INT64_MAX, 0), RP_DIMS(1, 1), 1));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(huge, huge), 1));
    fails(rp_conv2d(image, image, NULL, NULL, 2, RP_DIMS(0, 0), RP_DIMS(1, 1), 1));
    /* bad indices are found by the kernel */
    rp_tensor *index = rp_full(RP_DIMS(2), rp_i64(INT64_MIN), RP_I64);
    (void)rp_embedding(m, index);
    refuses(rp_synchronize(rp_cpu()));
    (void)rp_gather(a, 0, index);
    refuses(rp_synchronize(rp_cpu()));
}

/* Every op of the table by name: without arguments, with NULL, the error tensor, released tensors, wrong dtypes and
   attributes of the widest values. No call may crash; a failure has a message. */
static void every_op_by_name(void **state) {
    (void)state;
    static const int64_t ints[8] = {INT64_MAX, INT64_MIN, -1, 0, INT64_C(1) << 62, 3, -2, 1};
    rp_scope dead_scope = rp_scope_begin();
    rp_tensor *dead = ones(3);
    rp_scope_end(dead_scope, NULL, 0);
    uint64_t before = live();
    for (size_t i = 0; i < rp_op_count(); i++) {
        rp_op_info info;
        assert_int_equal(rp_op_info_at(i, &info), RP_OK);
        for (int round = 0; round < 60; round++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *pool[] = {NULL,
                                 wrong,
                                 dead,
                                 ones(4),
                                 rp_full(RP_NO_DIMS, rp_i64(2), RP_F64),
                                 rp_zeros(RP_DIMS(0, 3), RP_F32),
                                 rp_full(RP_DIMS(2, 3), rp_i64(-7), RP_I64),
                                 rp_full(RP_DIMS(2, 2), rp_bool(true), RP_BOOL),
                                 rp_full(RP_DIMS(1, 2, 4, 4), rp_i64(1), RP_F16),
                                 rp_full(RP_DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), rp_i64(1), RP_BF16)};
            rp_tensor *in[20], *out[8];
            rp_attr attrs[16];
            size_t n_in = (size_t)round % 5, n_attrs = 0;
            for (size_t k = 0; k < 20; k++)
                in[k] = pool[round < 5 ? 3 : (round < 10 ? (size_t)round : (size_t)round * 7 + k * (size_t)round) % 10];
            /* the schema's kinds, with the widest values */
            const char *at = strchr(info.schema, '(') + 1;
            while (*at != ')' && n_attrs < 16) {
                rp_attr a = {0};
                int64_t wide = ints[((size_t)round + n_attrs) % 8];
                while (*at == ' ' || *at == ',') at++;
                bool tensor = strncmp(at, "Tensor", 6) == 0;
                if (strncmp(at, "int[]", 5) == 0)
                    a = (rp_attr){.kind = RP_ATTR_INTS, .n = (size_t)round % 4, .v.ints = ints + round % 5};
                else if (strncmp(at, "int", 3) == 0)
                    a = (rp_attr){.kind = RP_ATTR_INT, .v.i = wide};
                else if (strncmp(at, "float", 5) == 0)
                    a = (rp_attr){.kind = RP_ATTR_FLOAT, .v.f = round % 2 ? (double)wide : 0.0 / 0.0};
                else if (strncmp(at, "bool", 4) == 0)
                    a = (rp_attr){.kind = RP_ATTR_BOOL, .v.b = round % 2};
                else if (strncmp(at, "Scalar", 6) == 0)
                    a = (rp_attr){.kind = RP_ATTR_SCALAR, .v.scalar = round % 2 ? rp_i64(wide) : rp_f64(1e300)};
                else if (strncmp(at, "dtype", 5) == 0)
                    a = (rp_attr){.kind = RP_ATTR_DTYPE, .v.dtype = (rp_dtype)(round % 11)};
                else if (strncmp(at, "str", 3) == 0)
                    a = (rp_attr){.kind = RP_ATTR_STRING, .v.string = round % 2 ? "%s%n" : NULL};
                else if (strncmp(at, "Generator", 9) == 0)
                    a = (rp_attr){.kind = RP_ATTR_GENERATOR};
                if (!tensor) attrs[n_attrs++] = a;
                int deep = 0;
                while (*at && (deep || (*at != ',' && *at != ')'))) {
                    deep += *at == '(' || *at == '[';
                    deep -= *at == ')' || *at == ']';
                    at++;
                }
            }
            rp_status status = rp_op_call(info.name, in, n_in, attrs, n_attrs, out, 1);
            if (status != RP_OK && !strstr(rp_error_message(), info.name))
                fail_msg("%s, round %d: the message does not name it: '%s'", info.name, round, rp_error_message());
            assert_true(status == RP_OK || rp_failed());
            (void)rp_synchronize(rp_cpu()); /* bad indices */
            rp_error_take();
            if (status == RP_OK && !rp_is_error(out[0])) {
                char text[64];
                (void)rp_format(out[0], text, sizeof text);
                rp_error_take();
            }
            rp_scope_end(scope, NULL, 0);
        }
    }
    assert_int_equal(live(), before);
}

static void calls_by_name_refuse(void **state) {
    (void)state;
    rp_tensor *a = ones(2), *out[9];
    rp_attr odd = {.kind = (rp_attr_kind)44}, one = {.kind = RP_ATTR_SCALAR, .v.scalar = rp_i64(1)};
    rp_attr many[40];
    for (int i = 0; i < 40; i++) many[i] = one;
    refuses(rp_op_call(NULL, NULL, 0, NULL, 0, NULL, 0));
    refuses(rp_op_call("", NULL, 0, NULL, 0, NULL, 0));
    refuses(rp_op_call("no_such_op", NULL, 0, NULL, 0, out, 1));
    refuses(rp_op_call("relu", NULL, 1, NULL, 0, out, 1));
    refuses(rp_op_call("relu", &a, 1, NULL, 1, out, 1));
    refuses(rp_op_call("relu", &a, 1, NULL, 0, NULL, 1));
    refuses(rp_op_call("relu", &a, 1, NULL, 0, out, 9));
    refuses(rp_op_call("relu", &a, 0, NULL, 0, out, 1));
    refuses(rp_op_call("relu", &a, SIZE_MAX, NULL, 0, out, 1));
    refuses(rp_op_call("cat", &a, SIZE_MAX, NULL, 0, out, 1));
    refuses(rp_op_call("add", RP_TENSORS(a, a), &odd, 1, out, 1));
    refuses(rp_op_call("add", RP_TENSORS(a, a), many, 40, out, 1));
    refuses(rp_op_call("add", RP_TENSORS(a, a), many, SIZE_MAX, out, 1));
    assert_int_equal(rp_op_call("relu", &a, 1, NULL, 0, NULL, 0), RP_OK);
}

static rp_status user_cpu(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                          rp_tensor *const *in_tensors, rp_tensor *const *out_tensors, const rp_attr *attrs,
                          size_t n_attrs) {
    (void)in, (void)n_in, (void)out, (void)n_out, (void)in_tensors, (void)out_tensors, (void)attrs, (void)n_attrs;
    return *(rp_status *)ctx;
}

static rp_status user_infer(void *ctx, rp_tensor *const *in, size_t n_in, const rp_attr *attrs, size_t n_attrs,
                            size_t k, int64_t *size, size_t *ndim, rp_dtype *dtype) {
    (void)in, (void)n_in, (void)attrs, (void)n_attrs, (void)k;
    size[0] = **(int64_t **)ctx;
    *ndim = (size_t)(*(int64_t **)ctx)[1];
    *dtype = (rp_dtype)(*(int64_t **)ctx)[2];
    return (rp_status)(*(int64_t **)ctx)[3];
}

static void user_ops_refuse(void **state) {
    (void)state;
    static rp_status answer = RP_OK;
    static int64_t shape[4], *shape_ctx = shape;
    static const char *const broken[] = {
        "",
        "hostile",
        "hostile(",
        "hostile()",
        "hostile(Tensor)",
        "hostile(Tensor self)",
        "hostile(Tensor self) ->",
        "hostile(Tensor self) -> int",
        "hostile(Tensor self) -> Tensor trailing",
        "hostile(Tensor self,) -> Tensor",
        "hostile(Tensor self, Tensor self) -> Tensor",
        "hostile(Tensor(a!) self) -> Tensor(a!)",
        "hostile(Tensor(a) self) -> Tensor(a)",
        "hostile(Tensor self) -> Tensor(a)",
        "hostile(Tensor self, int x=) -> Tensor",
        "hostile(Tensor self, int x=99999999999999999999) -> Tensor",
        "hostile(Tensor self, int[] x=[1,2,3,4,5]) -> Tensor",
        "hostile(Tensor self, float x=abc) -> Tensor",
        "hostile(Tensor self, str x='a') -> Tensor",
        "hostile(Tensor self, dtype d=float99) -> Tensor",
        "1hostile(Tensor self) -> Tensor",
        "hostile(int x) -> Tensor",
        "hostile(Tensor self) -> ()",
        "hostile(Tensor self, Foo x) -> Tensor",
        "hostile_with_a_name_that_is_far_too_long_for_any_op_of_the_table(Tensor self) -> Tensor",
        ("hostile(Tensor a, Tensor b, Tensor c, Tensor d, Tensor e, Tensor f, Tensor g, Tensor h, Tensor i, Tensor j, "
         "Tensor k, Tensor l, Tensor m, Tensor n, Tensor o, Tensor p, Tensor q) -> Tensor"),
        "hostile(Tensor self) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        "relu(Tensor self) -> Tensor"};
    rp_op_descriptor d = {.struct_size = sizeof d, .cpu = user_cpu, .ctx = &answer};
    refuses(rp_op_register(NULL));
    refuses(rp_op_register(&d));
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        d.schema = broken[i];
        refuses(rp_op_register(&d));
    }
    d.schema = "hostile(Tensor self) -> Tensor";
    d.struct_size = 0;
    refuses(rp_op_register(&d));
    d.struct_size = sizeof d;
    d.cpu = NULL;
    refuses(rp_op_register(&d));
    d.cuda_source = "";
    refuses(rp_op_register(&d));
    d.cuda_source = NULL;
    d.cpu = user_cpu;
    assert_int_equal(rp_op_register(&d), RP_OK);
    refuses(rp_op_register(&d));
    rp_tensor *a = ones(2), *out[1];
    answer = RP_ERROR_IO;
    refuses(rp_op_call("hostile", &a, 1, NULL, 0, out, 1));
    answer = RP_OK;
    refuses(rp_op_call("hostile", &wrong, 1, NULL, 0, out, 1));
    refuses(rp_op_call("hostile", (rp_tensor *[]){NULL}, 1, NULL, 0, out, 1));
    rp_op_descriptor s = {.struct_size = sizeof s,
                          .schema = "hostile_shape(Tensor self) -> Tensor",
                          .infer = user_infer,
                          .cpu = user_cpu,
                          .ctx = &answer};
    (void)s;
    s.ctx = &shape_ctx;
    s.cpu = NULL;
    s.cuda_source = "x";
    s.cuda_entry = "x";
    assert_int_equal(rp_op_register(&s), RP_OK);
    static const int64_t shapes[][4] = {{-1, 1, RP_F32, 0},          {1, 17, RP_F32, 0}, {1, -1, RP_F32, 0},
                                        {INT64_MAX, 1, RP_F32, 0},   {1, 1, 0, 0},       {1, 1, 99, 0},
                                        {1, 1, RP_F32, RP_ERROR_IO}, {1, 1, RP_F32, 0},  {INT64_MIN + 1, 1, RP_F32, 0},
                                        {INT64_MIN, 1, RP_F32, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        memcpy(shape, shapes[i], sizeof shape);
        refuses(rp_op_call("hostile_shape", &a, 1, NULL, 0, out, 1));
    }
}

static void scopes_refuse(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *a = ones(2);
    refuses(rp_scope_end((rp_scope){UINT64_MAX}, NULL, 0));
    refuses(rp_scope_end(s, NULL, 3));
    assert_int_equal(rp_numel(a), 2);
    assert_int_equal(rp_scope_end(s, (rp_tensor *[]){a, a, NULL, wrong}, 4), RP_OK);
    assert_int_equal(rp_item_i64(rp_select(a, 0, 0)), 1);
    refuses(rp_scope_end(s, NULL, 0));
    assert_true(rp_is_error(rp_retain(wrong)));
    /* released handles */
    rp_scope t = rp_scope_begin();
    rp_tensor *dead = ones(2);
    rp_scope_end(t, NULL, 0);
    fails(rp_relu(dead));
    fails(rp_add_scalar_(dead, rp_i64(1)));
    complains(rp_item(dead));
    complains(rp_data(dead));
    complains(rp_retain(dead));
    complains(rp_size(dead, 0));
    refuses(rp_backward(dead, NULL, NULL));
    refuses(rp_set_requires_grad(dead, true));
    refuses(rp_set_grad(a, dead));
    refuses(rp_scope_end(rp_scope_begin(), NULL, 1));
    char text[4];
    complains(rp_format(dead, text, 4));
    rp_release(dead);
    rp_error_take();
    /* more releases than references */
    rp_tensor *r = rp_retain(ones(3));
    rp_release(r);
    rp_release(r);
    (void)rp_error_take();
}

static rp_tensor *hook_bad(void *ctx, rp_tensor *grad) {
    (void)grad;
    return ctx ? *(rp_tensor **)ctx : NULL;
}

static rp_status pass_back(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out, size_t n_out,
                           rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)saved, (void)n_saved, (void)n_out, (void)n_in;
    grad_in[0] = grad_out[0];
    return RP_OK;
}
static void exp_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_exp(in[0]);
}
static void custom_functions_refuse(void **state) {
    (void)state;
    rp_function f = {.forward = {exp_body, NULL, 0, "f"}, .backward = pass_back};
    rp_tensor *x = ones(1), *out[1];
    refuses(rp_function_apply(&f, &x, 1, NULL, 1));
    refuses(rp_function_apply(&f, NULL, 1, out, 1));
    refuses(rp_function_apply(NULL, &x, 1, out, 1));
    refuses(rp_function_apply(&f, &wrong, 1, out, 1));
}

static void layers_refuse(void **state) {
    (void)state;
    rp_tensor *x = ones(1);
    refuses(rp_linear_layer_init(NULL, 1, 1, true, RP_F32));
    refuses(rp_embedding_layer_init(NULL, 1, 1, RP_F32));
    refuses(rp_layer_norm_layer_init(NULL, RP_DIMS(1), 1e-5, true, RP_F32));
    refuses(rp_conv2d_layer_init(NULL, 1, 1, 1, 1, NULL));
    fails(rp_linear_layer_forward(NULL, x));
    fails(rp_embedding_layer_forward(NULL, x));
    fails(rp_layer_norm_layer_forward(NULL, x));
    fails(rp_conv2d_layer_forward(NULL, x));
    rp_linear_layer_release(NULL);
    rp_embedding_layer_release(NULL);
    rp_layer_norm_layer_release(NULL);
    rp_conv2d_layer_release(NULL);
    refuses(rp_init_uniform(NULL, 0, 1));
    refuses(rp_init_uniform(x, 1, 0));
    refuses(rp_init_uniform(x, NAN, 1));
    refuses(rp_init_normal(x, 0, -1));
    refuses(rp_init_normal(x, 0, NAN));
}

static void optimizers_refuse(void **state) {
    (void)state;
    rp_tensor *x = ones(1);
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    rp_optimizer *o = rp_adam(NULL, 0, 0.1, NULL);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    rp_optimizer_release(o);
    o = rp_sgd(&x, 0, 0.1, NULL);
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    rp_optimizer_release(o);
    o = rp_sgd(&x, 1, 0.1, NULL);
    refuses(rp_sgd_add_group(o, NULL, 0, 0.1, NULL));
    refuses(rp_optimizer_set_lr(o, 0, NAN));
    refuses(rp_optimizer_set_lr(o, 0, -1));
    refuses(rp_optimizer_set_lr(o, 1, 1));
    assert_true(fabs(rp_item_f64(rp_optimizer_lr(o, 0)) - 0.1) < 1e-7);
    rp_optimizer_release(o);
}

static void gradients_refuse(void **state) {
    (void)state;
    rp_tensor *i64 = rp_full(RP_DIMS(2), rp_i64(1), RP_I64), *x = ones(2), *plain = ones(2), *out[2];
    refuses(rp_set_requires_grad(i64, true));
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    rp_tensor *y = rp_mul(x, x), *sum = rp_sum(y, RP_NO_DIMS, false, RP_DTYPE_NONE);
    refuses(rp_set_requires_grad(y, false));
    refuses(rp_backward(y, NULL, NULL));
    refuses(rp_backward(y, ones(3), NULL));
    refuses(rp_backward(y, i64, NULL));
    refuses(rp_backward(y, wrong, NULL));
    refuses(rp_backward(plain, NULL, NULL));
    refuses(rp_backward(sum, NULL, &(rp_backward_options){.retain_graph = true}));
    refuses(rp_grad(NULL, 1, &x, 1, NULL, NULL, out));
    refuses(rp_grad(&sum, 1, NULL, 1, NULL, NULL, out));
    refuses(rp_grad(&sum, 1, &x, 1, NULL, NULL, NULL));
    refuses(rp_grad(&sum, 0, &x, 1, NULL, NULL, out));
    refuses(rp_grad(&sum, 1, &plain, 1, NULL, NULL, out));
    refuses(rp_grad(&sum, 1, &wrong, 1, NULL, NULL, out));
    refuses(rp_grad(&wrong, 1, &x, 1, NULL, NULL, out));
    refuses(rp_grad(&y, 1, &x, 1, NULL, NULL, out));
    refuses(rp_grad(&y, 1, &x, 1, (rp_tensor *[]){ones(3)}, NULL, out));
    refuses(rp_grad(&sum, 1, &x, 1, NULL, &(rp_backward_options){0}, out));
    refuses(rp_set_grad(x, ones(3)));
    refuses(rp_set_grad(x, i64));
    refuses(rp_set_grad(x, wrong));
    complains(rp_register_hook(x, NULL, NULL));
    complains(rp_register_hook(plain, hook_bad, NULL));
    refuses(rp_remove_hook(x, 0));
    refuses(rp_remove_hook(x, 12345));
    rp_tensor *three = ones(3);
    uint64_t id = rp_register_hook(y, hook_bad, &three);
    assert_int_not_equal(id, 0);
    refuses(rp_backward(sum, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true)));
    three = wrong;
    refuses(rp_backward(sum, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true)));
    assert_int_equal(rp_remove_hook(y, id), RP_OK);
    assert_int_equal(rp_backward(sum, NULL, NULL), RP_OK);
    refuses(rp_backward(sum, NULL, NULL));
    /* custom functions */
    refuses(rp_function_apply(NULL, &x, 1, out, 1));
    refuses(rp_function_apply(&(rp_function){0}, &x, 1, out, 1));
}

static void leaves_out(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in, (void)out, (void)n_out;
}
static void doubles(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    for (size_t k = 0; k < n_in && k < n_out; k++) out[k] = rp_add(in[k], in[k], rp_i64(1));
}
static void gives_errors(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in;
    for (size_t k = 0; k < n_out; k++) out[k] = wrong;
}
static void shape_error(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in;
    for (size_t k = 0; k < n_out; k++) out[k] = rp_view(in[0], RP_DIMS(77));
}
static void leaks_scope(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)rp_scope_begin();
    doubles(ctx, in, n_in, out, n_out);
}
static void compiled_functions_refuse(void **state) {
    (void)state;
    rp_tensor *a = ones(2), *out[2] = {NULL, NULL};
    rp_fn none = {0}, fn = {doubles, NULL, 0, NULL}, bytes = {doubles, NULL, 16, "bytes"};
    rp_compiled *made[] = {
        rp_compile(none, NULL),
        (rp_error_take(), rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "no_such"))),
        (rp_error_take(), rp_compile(fn, &(rp_compile_options){0})),
        (rp_error_take(), rp_compile(bytes, NULL)),
        (rp_error_take(), rp_plain(none)),
        (rp_error_take(), rp_compile(fn, RP_OPTIONS(rp_compile_options, .purity = -1))),
        (rp_error_take(), rp_compile(fn, RP_OPTIONS(rp_compile_options, .layout = (rp_graph_layout)3))),
    };
    enum { MADE = sizeof made / sizeof *made };
    rp_error_take();
    for (size_t i = 0; i < MADE; i++) {
        rp_explain_entry e;
        assert_non_null(made[i]);
        rp_status status = rp_call(made[i], &a, 1, out, 1);
        if (status == RP_OK) fail_msg("made[%zu] ran", i);
        assert_true(rp_failed());
        rp_error_take();
        (void)rp_explain_count(made[i]);
        rp_error_take();
        refuses(rp_explain_at(made[i], 0, &e));
        (void)rp_graphed_set_training(made[i], true);
        rp_error_take();
    }
    for (size_t i = 0; i < MADE; i++) rp_compiled_release(made[i]);
    rp_compiled_release(NULL);
    refuses(rp_call(NULL, &a, 1, out, 1));
    complains(rp_explain_count(NULL));
    refuses(rp_explain_at(NULL, 0, &(rp_explain_entry){0}));
    refuses(rp_graphed_set_training(NULL, true));
    refuses(rp_guard_bytes(NULL, 8));
    rp_error_take();
    static const char *const backends[] = {"fused", "eager", "aot_eager", "cudagraphs", NULL};
    rp_body *bodies[] = {doubles, leaves_out, gives_errors, shape_error, leaks_scope};
    for (size_t b = 0; b < 5; b++) {
        for (size_t k = 0; k < 5; k++) {
            rp_compiled *f = backends[b] ? rp_compile((rp_fn){bodies[k], NULL, 0, "hostile"},
                                                      RP_OPTIONS(rp_compile_options, .backend = backends[b]))
                                         : rp_plain((rp_fn){bodies[k], NULL, 0, "hostile"});
            assert_false(rp_failed());
            for (int round = 0; round < 4; round++) {
                rp_scope s = rp_scope_begin();
                out[0] = out[1] = NULL;
                rp_status status = rp_call(f, &a, 1, out, 1);
                bool good = k == 0 || k == 1 || k == 4;
                if (good != (status == RP_OK) || rp_failed() == good)
                    fail_msg("backend %s body %zu round %d: %s '%s'", backends[b] ? backends[b] : "plain", k, round,
                             rp_status_name(status), rp_error_message());
                rp_error_take();
                if (k == 0) assert_int_equal(rp_item_i64(rp_select(out[0], 0, 1)), 2);
                if (k == 1) assert_null(out[0]);
                rp_scope_end(s, NULL, 0);
            }
            refuses(rp_call(f, NULL, 1, out, 1));
            refuses(rp_call(f, &a, 1, NULL, 1));
            if (k == 0) {
                refuses(rp_call(f, &wrong, 1, out, 1));
                refuses(rp_call(f, (rp_tensor *[]){NULL}, 1, out, 1));
            }
            rp_explain_entry e;
            refuses(rp_explain_at(f, SIZE_MAX, &e));
            refuses(rp_explain_at(f, 0, NULL));
            size_t n = rp_explain_count(f);
            refuses(rp_explain_at(f, n, &e));
            for (size_t i = 0; i < n; i++) {
                assert_int_equal(rp_explain_at(f, i, &e), RP_OK);
                assert_true(e.kind && e.reason && e.message && e.site);
            }
            rp_compiled_release(f);
        }
    }
}

/* A backend that does as it is told. */
enum { B_GOOD, B_NOTHING, B_SHAPE, B_RANK, B_DTYPE, B_ERROR, B_STICKY, B_STATUS, B_ODD_STATUS, B_KINDS };
static struct told {
    rp_status compile;
    int run;
    bool drops; /* writes rubbish where its object belongs, although it fails */
    int live;   /* objects compiled and not destroyed */
} told;
static rp_status backend_compile(void *ctx, const rp_ir *graph, void **compiled) {
    (void)ctx;
    *compiled = told.drops ? (void *)&told : (void *)(uintptr_t)graph;
    if (told.compile == RP_OK) told.live++;
    return told.compile;
}
static void backend_destroy(void *ctx, void *compiled) {
    (void)ctx;
    assert_ptr_not_equal(compiled, &told);
    told.live--;
}
static rp_status backend_run(void *ctx, void *compiled, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                             size_t n_out) {
    (void)ctx;
    switch (told.run) {
    case B_GOOD: return rp_ir_run(compiled, in, n_in, out, n_out);
    case B_SHAPE: out[0] = ones(3); break;
    case B_RANK: out[0] = rp_full(RP_DIMS(2, 1), rp_i64(1), RP_F32); break;
    case B_DTYPE: out[0] = rp_full(RP_DIMS(2), rp_i64(1), RP_F64); break;
    case B_ERROR: out[0] = wrong; break;
    case B_STICKY: out[0] = rp_view(in[0], RP_DIMS(77)); break;
    case B_STATUS: return RP_ERROR_IO;
    case B_ODD_STATUS: return (rp_status)-77;
    default: break; /* leaves out[] as it was */
    }
    return RP_OK;
}

static void call_told(bool strict, bool gradient, const char *named) {
    rp_tensor *a = ones(2), *out[1];
    if (gradient) assert_int_equal(rp_set_requires_grad(a, true), RP_OK);
    rp_compiled *f = rp_compile((rp_fn){doubles, NULL, 0, "f"},
                                RP_OPTIONS(rp_compile_options, .backend = "hostile", .strict = strict));
    for (int round = 0; round < 4; round++) {
        rp_scope scope = rp_scope_begin();
        rp_status status = rp_call(f, &a, 1, out, 1);
        if (named && (round > 0 || strict)) { /* the first call computes while it traces */
            if (status == RP_OK || !strstr(rp_error_message(), named))
                fail_msg("mode %d/%d, round %d: %s '%s'", (int)told.compile, told.run, round, rp_status_name(status),
                         rp_error_message());
            assert_true(rp_is_error(out[0]));
        } else if (!named || told.run == B_GOOD) {
            assert_int_equal(status, RP_OK);
            assert_int_equal(rp_item_i64(rp_select(out[0], 0, 1)), 2);
            if (gradient)
                assert_int_equal(rp_backward(rp_sum(out[0], RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL), RP_OK);
        }
        rp_error_take();
        rp_scope_end(scope, NULL, 0);
    }
    rp_compiled_release(f);
    assert_int_equal(told.live, 0);
}

static void backends_refuse(void **state) {
    (void)state;
    rp_backend b = {sizeof b, "hostile", backend_compile, backend_run, backend_destroy, NULL};
    refuses(rp_register_backend(NULL));
    refuses(rp_register_backend(&(rp_backend){0}));
    rp_backend cut = b;
    cut.struct_size = 0;
    refuses(rp_register_backend(&cut));
    cut = b;
    cut.name = "inductor";
    refuses(rp_register_backend(&cut));
    cut.name = "hostile2";
    cut.run = NULL;
    refuses(rp_register_backend(&cut));
    assert_int_equal(rp_register_backend(&b), RP_OK);
    refuses(rp_register_backend(&b));
    for (int gradient = 0; gradient < 2; gradient++) {
        /* a compile that fails: an error when strict, else node by node */
        static const rp_status failures[] = {RP_ERROR_IO, RP_ERROR_UNAVAILABLE, RP_ERROR_COMPILE, (rp_status)-3};
        for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
            told = (struct told){.compile = failures[i], .drops = i % 2};
            call_told(true, gradient, "backend \"hostile\"");
            call_told(false, gradient, NULL);
        }
        /* results that are none, or not what the graph says */
        for (int kind = 0; kind < B_KINDS; kind++) {
            told = (struct told){.run = kind};
            call_told(false, gradient, kind == B_GOOD ? NULL : "backend \"hostile\"");
        }
        told = (struct told){.compile = RP_ERROR_OUT_OF_MEMORY};
        rp_tensor *a = ones(2), *out[1];
        rp_compiled *f =
            rp_compile((rp_fn){doubles, NULL, 0, "f"}, RP_OPTIONS(rp_compile_options, .backend = "hostile"));
        refuses(rp_call(f, &a, 1, out, 1));
        rp_compiled_release(f);
    }
}

/* An op that has no derivative: said in PyTorch's words, with a way out. */
static void draws_indices(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(in[0], rp_to_dtype(rp_eq(in[0], in[0]), RP_F32));
}
static void strict_tells_of_skips(void **state) {
    (void)state;
    rp_tensor *x = ones(3), *out[1];
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    rp_compiled *f = rp_compile((rp_fn){draws_indices, NULL, 0, "f"}, RP_OPTIONS(rp_compile_options, .strict = true));
    for (int round = 0; round < 3; round++) {
        assert_int_equal(rp_call(f, &x, 1, out, 1), RP_OK);
        assert_int_equal(rp_backward(rp_sum(out[0], RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL), RP_OK);
    }
    rp_compiled_release(f);
}

static void body_false(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in, (void)n_out;
    out[0] = rp_full(RP_NO_DIMS, rp_bool(false), RP_BOOL);
}
static void body_true(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in, (void)n_out;
    out[0] = rp_full(RP_NO_DIMS, rp_bool(true), RP_BOOL);
}

static void try_regions(rp_tensor *a) {
    rp_tensor *out[2] = {NULL, NULL}, *yes = rp_full(RP_NO_DIMS, rp_bool(true), RP_BOOL);
    rp_fn f = {doubles, NULL, 0, "doubles"}, none = {0}, absent = {leaves_out, NULL, 0, "absent"},
          bad = {gives_errors, NULL, 0, "bad"}, no = {body_false, NULL, 0, "no"}, always = {body_true, NULL, 0, "yes"},
          shape = {shape_error, NULL, 0, "shape"};
    refuses(rp_cond(NULL, f, f, &a, 1, out, 1));
    refuses(rp_cond(wrong, f, f, &a, 1, out, 1));
    refuses(rp_cond(ones(2), f, f, &a, 1, out, 1));
    refuses(rp_cond(yes, none, f, &a, 1, out, 1));
    refuses(rp_cond(yes, f, none, &a, 1, out, 1));
    refuses(rp_cond(yes, f, f, NULL, 1, out, 1));
    refuses(rp_cond(yes, f, f, &a, 1, NULL, 1));
    refuses(rp_cond(yes, f, f, &wrong, 1, out, 1));
    refuses(rp_cond(yes, f, f, (rp_tensor *[]){NULL}, 1, out, 1));
    refuses(rp_cond(yes, bad, bad, &a, 1, out, 1));
    refuses(rp_cond(yes, shape, shape, &a, 1, out, 1));
    refuses(rp_while(none, f, &a, 1, 3, out));
    refuses(rp_while(no, none, &a, 1, 3, out));
    refuses(rp_while(no, f, NULL, 1, 3, out));
    refuses(rp_while(no, f, &a, 1, 3, NULL));
    refuses(rp_while(no, f, &wrong, 1, 3, out));
    refuses(rp_while(absent, f, &a, 1, 3, out));
    refuses(rp_while(f, f, &a, 1, 3, out)); /* a condition of two elements */
    refuses(rp_while(always, absent, &a, 1, 3, out));
    refuses(rp_while(always, bad, &a, 1, 3, out));
    refuses(rp_while(bad, f, &a, 1, 3, out));
    refuses(rp_checkpoint(none, &a, 1, out, 1));
    refuses(rp_checkpoint(f, NULL, 1, out, 1));
    refuses(rp_checkpoint(f, &a, 1, NULL, 1));
    refuses(rp_checkpoint(f, &wrong, 1, out, 1));
    refuses(rp_checkpoint(bad, &a, 1, out, 1));
    refuses(rp_checkpoint(shape, &a, 1, out, 1));
}

static void regions_refuse(void **state) {
    (void)state;
    rp_tensor *a = ones(2);
    try_regions(a);
    assert_int_equal(rp_set_requires_grad(a, true), RP_OK);
    try_regions(a);
}

static void graphs_as_text_refuse(void **state) {
    (void)state;
    static const char *const garbage[] = {"",
                                          "graph",
                                          "graph {",
                                          "{}",
                                          "\x00\x01\x02",
                                          "graph f(%0: f32[99999999999999999999])",
                                          "((((((((((((((((((",
                                          "%",
                                          "graph g(%a: f32[2]) { return %b }"};
    rp_tensor *a = ones(2), *out[2];
    char text[4096];
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        rp_ir *ir = rp_ir_parse(garbage[i], strlen(garbage[i]));
        assert_true(rp_failed());
        rp_error_take();
        assert_non_null(ir);
        (void)rp_ir_check(ir);
        (void)rp_ir_run(ir, &a, 1, out, 1);
        (void)rp_ir_text(ir, text, sizeof text);
        rp_error_take();
        rp_ir_release(ir);
    }
    rp_ir *null_text = rp_ir_parse(NULL, 10);
    assert_int_not_equal(rp_error_take(), RP_OK);
    rp_ir_release(null_text);
    rp_ir_release(NULL);
    refuses(rp_ir_check(NULL));
    refuses(rp_ir_run(NULL, &a, 1, out, 1));
    (void)rp_ir_text(NULL, text, 4);
    (void)rp_ir_equal(NULL, NULL);
    rp_error_take();
    rp_ir *bad = rp_trace((rp_fn){0}, &a, 1, 1);
    assert_int_not_equal(rp_error_take(), RP_OK);
    assert_non_null(bad);
    rp_ir_release(bad);
    bad = rp_trace((rp_fn){doubles, NULL, 0, "f"}, NULL, 1, 1);
    assert_int_not_equal(rp_error_take(), RP_OK);
    rp_ir_release(bad);
    bad = rp_trace((rp_fn){shape_error, NULL, 0, "f"}, &a, 1, 1);
    assert_int_not_equal(rp_error_take(), RP_OK);
    rp_ir_release(bad);
    rp_ir *good = rp_trace((rp_fn){doubles, NULL, 0, "f"}, &a, 1, 1);
    assert_false(rp_failed());
    assert_int_equal(rp_ir_check(good), RP_OK);
    assert_false(rp_ir_equal(good, NULL));
    rp_error_take();
    refuses(rp_ir_run(good, &a, 0, out, 1));
    refuses(rp_ir_run(good, &a, 1, out, 2));
    refuses(rp_ir_run(good, NULL, 1, out, 1));
    refuses(rp_ir_run(good, &a, 1, NULL, 1));
    refuses(rp_ir_run(good, &wrong, 1, out, 1));
    refuses(rp_ir_run(good, (rp_tensor *[]){NULL}, 1, out, 1));
    refuses(rp_ir_run(good, (rp_tensor *[]){ones(3)}, 1, out, 1));
    size_t need = rp_ir_text(good, NULL, 0);
    assert_true(need > 0 && need < sizeof text);
    assert_int_equal(rp_ir_text(good, NULL, 100), need);
    for (size_t n = 1; n <= need + 1; n++) {
        memset(text, 'x', sizeof text);
        assert_int_equal(rp_ir_text(good, text, n), need);
        assert_int_equal(text[n - 1], 0);
        assert_int_equal(text[n], 'x');
    }
    for (size_t n = 0; n < need; n++) { /* every prefix */
        rp_ir *cut = rp_ir_parse(text, n);
        (void)rp_ir_equal(cut, good);
        rp_error_take();
        rp_ir_release(cut);
    }
    rp_ir *again = rp_ir_parse(text, need);
    assert_true(rp_ir_equal(again, good));
    rp_ir_release(again);
    rp_ir_release(good);
}

static void buffers_of_any_size(void **state) {
    (void)state;
    rp_tensor *a = rp_from_data(((float[]){1, 2.5f, -3}), RP_DIMS(3), RP_F32);
    char text[64];
    size_t need = rp_format(a, NULL, 0);
    assert_int_equal(rp_format(a, NULL, 64), need);
    for (size_t n = 1; n < 63; n++) {
        memset(text, 'x', sizeof text);
        assert_int_equal(rp_format(a, text, n), need);
        size_t end = n <= need ? n - 1 : need;
        assert_int_equal(strlen(text), end);
        assert_int_equal(text[end + 1], 'x');
    }
    need = rp_doctor(NULL, 0);
    assert_true(need > 0);
    assert_int_equal(rp_doctor(NULL, 64), need);
    assert_int_equal(rp_doctor(text, 1), need);
    assert_int_equal(text[0], 0);
    refuses(rp_memory_stats_get(rp_cpu(), NULL));
    rp_memory_stats zero = {0};
    refuses(rp_memory_stats_get(rp_cpu(), &zero));
    refuses(rp_to_host(a, NULL, 12));
    refuses(rp_to_host(a, text, 11));
    refuses(rp_to_host(a, text, SIZE_MAX));
    complains(rp_size(a, 1));
    complains(rp_size(a, INT64_MIN));
    complains(rp_stride(a, INT64_MAX));
    complains(rp_item(a));
}

static void streams_events_graphs_refuse(void **state) {
    (void)state;
    rp_tensor *a = ones(2);
    rp_generator *g = rp_generator_new(rp_cpu(), 5);
    rp_generator_release(NULL);
    refuses(rp_generator_seed(NULL, 1));
    refuses(rp_generator_get(NULL, NULL, NULL));
    refuses(rp_generator_set(NULL, 1, 1));
    assert_int_equal(rp_generator_get(g, NULL, NULL), RP_OK);
    assert_int_equal(rp_generator_set(g, 1, UINT64_MAX), RP_OK);
    (void)rp_randn(RP_DIMS(9), RP_F32, g);
    rp_error_take();
    rp_generator_release(rp_default_generator(rp_cpu()));
    rp_generator_release(rp_default_generator(rp_cpu()));
    assert_int_equal(rp_generator_seed(rp_default_generator(rp_cpu()), 1), RP_OK);
    rp_generator_release(g);

    refuses(rp_set_current_stream(NULL));
    refuses(rp_stream_synchronize(NULL));
    complains(rp_stream_query(NULL));
    rp_stream_release(NULL);
    rp_stream *s = rp_stream_new(rp_cpu()), *first = rp_current_stream(rp_cpu());
    rp_event *e = rp_event_new(rp_cpu(), false), *t = rp_event_new(rp_cpu(), true);
    refuses(rp_event_record(NULL, s));
    refuses(rp_event_record(e, NULL));
    refuses(rp_event_synchronize(NULL));
    complains(rp_event_query(NULL));
    complains(rp_event_elapsed_ms(NULL, NULL));
    complains(rp_event_elapsed_ms(t, t)); /* never recorded */
    refuses(rp_stream_wait_event(NULL, e));
    refuses(rp_stream_wait_event(s, NULL));
    assert_int_equal(rp_event_record(e, s), RP_OK);
    assert_int_equal(rp_event_record(t, s), RP_OK);
    complains(rp_event_elapsed_ms(e, t));
    assert_true(rp_event_elapsed_ms(e, t) < 0);
    rp_error_take();
    rp_event_release(NULL);
    rp_event_release(e);
    rp_event_release(t);

    refuses(rp_graph_begin(NULL, rp_cpu(), NULL));
    refuses(rp_graph_end(NULL));
    refuses(rp_graph_instantiate(NULL));
    refuses(rp_graph_replay(NULL));
    refuses(rp_graph_reset(NULL));
    refuses(rp_graph_repoint(NULL, a, a));
    complains(rp_graph_pool(NULL));
    rp_graph_release(NULL);
    rp_pool_release(NULL);
    rp_graph *graph = rp_graph_new(), *other = rp_graph_new();
    refuses(rp_graph_end(graph));
    refuses(rp_graph_instantiate(graph));
    refuses(rp_graph_replay(graph));
    refuses(rp_graph_repoint(graph, a, a));
    assert_int_equal(rp_graph_reset(graph), RP_OK);
    refuses(rp_graph_begin(graph, rp_cpu(), &(rp_graph_options){0}));
    refuses(rp_graph_begin(graph, rp_cpu(), RP_OPTIONS(rp_graph_options, .mode = (rp_capture_mode)8)));
    refuses(rp_graph_begin(graph, rp_cpu(), RP_OPTIONS(rp_graph_options, .stream = first)));
    assert_int_equal(rp_graph_begin(graph, rp_cpu(), NULL), RP_OK);
    refuses(rp_graph_begin(graph, rp_cpu(), NULL));
    rp_tensor *b = rp_add(a, a, rp_i64(1));
    complains(rp_item(rp_select(b, 0, 0)));
    (void)rp_graph_end(graph);
    rp_error_take();
    (void)rp_graph_reset(graph);
    rp_error_take();
    assert_false(rp_is_capturing(rp_cpu()));
    assert_int_equal(rp_graph_begin(graph, rp_cpu(), NULL), RP_OK);
    refuses(rp_graph_replay(graph));
    refuses(rp_graph_end(other));
    b = rp_add(a, a, rp_i64(1));
    assert_int_equal(rp_graph_end(graph), RP_OK);
    refuses(rp_graph_end(graph));
    refuses(rp_graph_instantiate(graph));
    refuses(rp_graph_begin(graph, rp_cpu(), NULL));
    refuses(rp_graph_repoint(graph, a, ones(3)));
    refuses(rp_graph_repoint(graph, ones(2), a));
    refuses(rp_graph_repoint(graph, NULL, a));
    refuses(rp_graph_repoint(graph, a, wrong));
    assert_int_equal(rp_graph_replay(graph), RP_OK);
    assert_int_equal(rp_item_i64(rp_select(b, 0, 0)), 2);
    assert_int_equal(rp_graph_begin(other, rp_cpu(), NULL), RP_OK);
    rp_graph_release(other); /* abandoned in the middle */
    assert_false(rp_is_capturing(rp_cpu()));
    rp_graph_release(graph);
    assert_int_equal(rp_item_i64(rp_select(b, 0, 0)), 2);
    rp_stream_release(s);

    rp_compiled *made[2] = {NULL, NULL};
    rp_graphed_callable c = {.fn = {doubles, NULL, 0, "f"}, .args = &a, .n_args = 1, .n_out = 1}, cut = c;
    refuses(rp_make_graphed_callables(NULL, 1, NULL, made));
    refuses(rp_make_graphed_callables(&c, 0, NULL, made));
    refuses(rp_make_graphed_callables(&c, 1, NULL, NULL));
    refuses(rp_make_graphed_callables(&c, 1, &(rp_graphed_options){0}, made));
    cut.args = NULL;
    refuses(rp_make_graphed_callables(&cut, 1, NULL, made));
    cut = c;
    cut.fn.body = NULL;
    refuses(rp_make_graphed_callables(&cut, 1, NULL, made));
    cut = c;
    cut.args = &wrong;
    refuses(rp_make_graphed_callables(&cut, 1, NULL, made));
    cut = c;
    cut.n_params = 1;
    refuses(rp_make_graphed_callables(&cut, 1, NULL, made));
    cut = c;
    cut.fn.body = shape_error;
    refuses(rp_make_graphed_callables(&cut, 1, NULL, made));
    assert_false(rp_is_capturing(rp_cpu()));
}

/* A callable that behaves until its run number `at`: 0 to 2 are warm-ups, 3 is the capture. */
enum {
    G_GOOD,
    G_ERROR,
    G_NULL,
    G_SHAPE,
    G_RANK,
    G_DTYPE,
    G_FAILS,
    G_RELEASES,
    G_RELEASES_ALL,
    G_READS,
    G_SYNCHRONIZES,
    G_CAPTURES,
    G_GRAPHS,
    G_SCOPE,
    G_BACKWARD,
    G_KINDS
};
typedef struct odd {
    int kind, at, runs;
} odd;

static void odd_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    odd *o = ctx;
    rp_compiled *inner = NULL;
    rp_graphed_callable c = {.fn = {doubles, NULL, 0, "inner"}, .args = in, .n_args = 1, .n_out = 1};
    doubles(NULL, in, n_in, out, n_out);
    if (o->runs++ != o->at) return;
    switch (o->kind) {
    case G_ERROR: out[0] = wrong; break;
    case G_NULL: out[0] = NULL; break;
    case G_SHAPE: out[0] = rp_cat(RP_TENSORS(in[0], in[0]), 0); break;
    case G_RANK: out[0] = rp_unsqueeze(out[0], 0); break;
    case G_DTYPE: out[0] = rp_to_dtype(out[0], RP_F64); break;
    case G_FAILS: out[0] = rp_view(in[0], RP_DIMS(77)); break;
    case G_RELEASES: rp_release(in[0]); break;
    case G_RELEASES_ALL:
        for (int k = 0; k < 5; k++) rp_release(in[0]);
        break;
    case G_READS: (void)rp_item(rp_select(out[0], 0, 0)); break;
    case G_SYNCHRONIZES: (void)rp_synchronize(rp_cpu()); break;
    case G_CAPTURES: {
        rp_graph *g = rp_graph_new();
        (void)rp_graph_begin(g, rp_cpu(), NULL);
        rp_graph_release(g);
        break;
    }
    case G_GRAPHS:
        (void)rp_make_graphed_callables(&c, 1, NULL, &inner);
        rp_compiled_release(inner);
        break;
    case G_SCOPE: (void)rp_scope_begin(); break;
    case G_BACKWARD: (void)rp_backward(rp_sum(out[0], RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL); break;
    default: break;
    }
}

/* Which runs this one must not survive. */
static bool is_refused(int kind, int at, bool training) {
    switch (kind) {
    case G_GOOD:
    case G_SCOPE: return false;
    case G_READS: /* only a capture forbids them */
    case G_SYNCHRONIZES:
    case G_CAPTURES: /* a thread has one capture */
    case G_GRAPHS: return at == 3;
    case G_BACKWARD: return !training; /* an addition keeps nothing, so it can be gone through again */
    default: return true;
    }
}

static void good_graphed(bool training) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *a = ones(2), *out;
    if (training) rp_set_requires_grad(a, true);
    rp_graphed_callable c = {.fn = {doubles, NULL, 0, "good"}, .args = &a, .n_args = 1, .n_out = 1};
    rp_compiled *f;
    assert_int_equal(rp_make_graphed_callables(&c, 1, NULL, &f), RP_OK);
    assert_int_equal(rp_call(f, &a, 1, &out, 1), RP_OK);
    assert_int_equal(rp_item_i64(rp_select(out, 0, 1)), 2);
    if (training) {
        assert_int_equal(rp_backward(rp_sum(out, RP_NO_DIMS, false, RP_DTYPE_NONE), NULL, NULL), RP_OK);
        assert_int_equal(rp_item_i64(rp_select(rp_grad_of(a), 0, 1)), 2);
        rp_set_grad(a, NULL);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

static void odd_graphed(int kind, int at, bool training, bool second) {
    rp_scope scope = rp_scope_begin();
    odd o = {kind, at, 0};
    rp_tensor *a = ones(2), *b = ones(2), *out;
    if (training) {
        rp_set_requires_grad(a, true);
        rp_set_requires_grad(b, true);
    }
    rp_graphed_callable c[2] = {{.fn = {doubles, NULL, 0, "good"}, .args = &b, .n_args = 1, .n_out = 1},
                                {.fn = {odd_body, &o, 0, "odd"}, .args = &a, .n_args = 1, .n_out = 1}};
    rp_compiled *f[2];
    size_t n = second ? 2 : 1;
    assert_false(rp_failed());
    rp_status status = rp_make_graphed_callables(second ? c : c + 1, n, NULL, f);
    const char *m = rp_error_message();
    if ((status != RP_OK) != is_refused(kind, at, training) || (status != RP_OK) != rp_failed())
        fail_msg("kind %d at run %d%s: %s '%s'", kind, at, training ? ", training" : "", rp_status_name(status), m);
    if (status != RP_OK && (!strstr(m, "odd") || !strstr(m, "test_hostile.c:")))
        fail_msg("kind %d at run %d%s: the message names not both callable and line: '%s'", kind, at,
                 training ? ", training" : "", m);
    rp_error_take();
    assert_false(rp_is_capturing(rp_cpu()));
    assert_true(rp_grad_enabled());
    for (size_t k = 0; k < n; k++) {
        if (status != RP_OK)
            refuses(rp_call(f[k], &b, 1, &out, 1));
        else
            assert_int_equal(rp_call(f[k], second && k == 0 ? &b : &a, 1, &out, 1), RP_OK);
        rp_compiled_release(f[k]);
    }
    rp_error_take();
    rp_scope_end(scope, NULL, 0);
    rp_error_take(); /* what the function released too often */
}

static void graphed_callables_refuse(void **state) {
    (void)state;
    for (int training = 0; training < 2; training++) good_graphed(training);
    rp_memory_stats s = {.struct_size = sizeof s};
    uint64_t before = live(), reserved = 0;
    for (int turn = 0; turn < 2; turn++) {
        for (int kind = 0; kind < G_KINDS; kind++) {
            for (int at = 0; at < 4; at++) {
                for (int mode = 0; mode < 4; mode++) odd_graphed(kind, at, mode & 1, mode & 2);
                good_graphed(at & 1);
                if (live() != before)
                    fail_msg("kind %d at run %d: %lld tensors were left", kind, at, (long long)(live() - before));
            }
        }
        assert_int_equal(rp_memory_stats_get(rp_cpu(), &s), RP_OK);
        if (turn == 0) reserved = s.reserved;
    }
    assert_true(s.reserved <= reserved);
}

static int begin_test(void **state) {
    (void)state;
    wrong = error_tensor();
    static rp_scope scope;
    scope = rp_scope_begin();
    *state = &scope;
    return 0;
}
static int end_test(void **state) {
    return rp_scope_end(*(rp_scope *)*state, NULL, 0) == RP_OK && !rp_failed() ? 0 : -1;
}
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin_test, end_test)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(accessors_answer_anything),
        CASE(names_and_numbers_out_of_range),
        CASE(factories_refuse),
        CASE(ops_refuse),
        CASE(calls_by_name_refuse),
        CASE(user_ops_refuse),
        CASE(scopes_refuse),
        CASE(gradients_refuse),
        CASE(custom_functions_refuse),
        CASE(layers_refuse),
        CASE(optimizers_refuse),
        CASE(compiled_functions_refuse),
        CASE(backends_refuse),
        CASE(strict_tells_of_skips),
        CASE(regions_refuse),
        CASE(graphs_as_text_refuse),
        CASE(buffers_of_any_size),
        CASE(streams_events_graphs_refuse),
        CASE(graphed_callables_refuse),
        CASE(every_op_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
