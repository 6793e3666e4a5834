/* Hostile callers: the public functions of tensors, ops, layers and gradients with arguments that no program should pass.
   Each call must come back with an error and leave nothing behind; only the public header is used. Compiled functions and
   graphs are in test_hostile_graphs.c, sizes in test_hostile_sizes.c. */
/* ctest: again=REPRISE_CHECK=1 */
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/check.h"

#include "reprise.h"
#include "reprise_ir.h"
#include "reprise_nn.h"
#include "support/hostile.h"

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
        fails(rp_randn(RP_DIMS(2), RP_OPTIONS(rp_randn_options, .generator = g)));
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
    refuses(rp_op_info_get(rp_op_count(), &info));
    refuses(rp_op_info_get(0, NULL));
    for (size_t i = 0; i < rp_op_count(); i++) {
        assert_int_equal(rp_op_info_get(i, &info), RP_OK);
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
    rp_tensor *i32 = rp_full(RP_DIMS(1), rp_i64(2), RP_OPTIONS(rp_full_options, .dtype = RP_I32));
    fails(rp_add(i32, i32, RP_OPTIONS(rp_add_options, .alpha = rp_i64(far))));
    fails(rp_sub(i32, i32, RP_OPTIONS(rp_sub_options, .alpha = rp_i64(INT64_MIN))));
    fails(rp_add_(i32, i32, RP_OPTIONS(rp_add_options, .alpha = rp_i64(far))));
    fails(rp_add(ones(1), ones(1), RP_OPTIONS(rp_add_options, .alpha = rp_f64(1e300))));
    fails(rp_from_data(x, NULL, 1, RP_F32));
    fails(rp_from_data(NULL, RP_DIMS(2), RP_F32));
    fails(rp_from_data(x, RP_DIMS(-1), RP_F32));
    fails(rp_from_data(x, RP_DIMS(huge), RP_F32));
    fails(rp_from_data(x, RP_DIMS(huge, huge), RP_U8));
    fails(rp_from_data(x, RP_DIMS(1), (rp_dtype)77));
    fails(rp_from_data(x, RP_DIMS(1), RP_DTYPE_NONE));
    fails(rp_from_data(x, seventeen, 17, RP_F32));
    fails(rp_from_data(x, seventeen, SIZE_MAX, RP_F32));
    fails(rp_zeros(RP_DIMS(huge)));
    fails(rp_zeros(RP_DIMS(huge), RP_OPTIONS(rp_zeros_options, .dtype = RP_U8)));
    fails(rp_zeros(RP_DIMS(-2)));
    fails(rp_zeros(NULL, 2));
    fails(rp_zeros(seventeen, 17));
    fails(rp_zeros(seventeen, SIZE_MAX));
    fails(rp_zeros(RP_DIMS(2), RP_OPTIONS(rp_zeros_options, .dtype = (rp_dtype)77)));
    fails(rp_zeros(RP_DIMS(2), RP_OPTIONS(rp_zeros_options, .dtype = (rp_dtype)-1)));
    fails(rp_empty(RP_DIMS(huge, huge), RP_OPTIONS(rp_empty_options, .dtype = RP_F64)));
    fails(rp_full(RP_DIMS(2), (rp_scalar){.kind = (rp_scalar_kind)9}, RP_OPTIONS(rp_full_options, .dtype = RP_F32)));
    fails(rp_arange(rp_i64(0), rp_i64(1), rp_i64(0), RP_OPTIONS(rp_arange_options, .dtype = RP_DTYPE_NONE)));
    fails(rp_arange(rp_i64(1), rp_i64(0), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_DTYPE_NONE)));
    fails(rp_arange(rp_i64(INT64_MIN), rp_i64(INT64_MAX), rp_i64(1),
                    RP_OPTIONS(rp_arange_options, .dtype = RP_DTYPE_NONE)));
    fails(rp_arange(rp_f64(0), rp_f64(1.0 / 0.0), rp_f64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_DTYPE_NONE)));
    fails(rp_arange(rp_f64(0.0 / 0.0), rp_f64(1), rp_f64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_DTYPE_NONE)));
    fails(rp_arange(rp_f64(0), rp_f64(1), rp_f64(1e-300), RP_OPTIONS(rp_arange_options, .dtype = RP_DTYPE_NONE)));
    fails(rp_randn(RP_DIMS(2), RP_OPTIONS(rp_randn_options, .dtype = RP_I64)));
    fails(rp_randn(RP_DIMS(-2)));
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
    rp_tensor *a = ones(6), *m = rp_view(a, RP_DIMS(2, 3)),
              *scalar = rp_full(RP_NO_DIMS, rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32));
    rp_tensor *i64 = rp_arange(rp_i64(0), rp_i64(6));
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
    fails(rp_sum(m, RP_DIMS(0, 0)));
    fails(rp_sum(m, RP_DIMS(2)));
    fails(rp_sum(m, NULL, 3));
    fails(rp_sum(m, RP_NO_DIMS, false, RP_OPTIONS(rp_sum_options, .dtype = (rp_dtype)66)));
    fails(rp_softmax(m, INT64_MAX));
    fails(rp_softmax(i64, 0));
    fails(rp_add(a, NULL));
    fails(rp_add(NULL, a));
    fails(rp_add(wrong, a));
    fails(rp_add(a, a, RP_OPTIONS(rp_add_options, .alpha = (rp_scalar){.kind = (rp_scalar_kind)12})));
    fails(rp_add(i64, i64, RP_OPTIONS(rp_add_options, .alpha = rp_f64(0.5))));
    fails(rp_add(a, ones(5)));
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
    fails(rp_multinomial(a, 0, true));
    fails(rp_multinomial(a, 7, false));
    fails(rp_multinomial(i64, 1, false));
    rp_tensor *image = rp_full(RP_DIMS(1, 1, 4, 4), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(0, 0), RP_DIMS(0, 0), RP_DIMS(1, 1), 1));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(-1, 0), RP_DIMS(1, 1), 1));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(0, 1), 1));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(1, 1), 0));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(huge, huge), RP_DIMS(1, 1), 1));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(INT64_MAX, 0), RP_DIMS(1, 1), 1));
    fails(rp_conv2d(image, image, NULL, RP_DIMS(1, 1), RP_DIMS(0, 0), RP_DIMS(huge, huge), 1));
    fails(rp_conv2d(image, image, NULL, NULL, 2, RP_DIMS(0, 0), RP_DIMS(1, 1), 1));
    /* bad indices are found by the kernel */
    rp_tensor *index = rp_full(RP_DIMS(2), rp_i64(INT64_MIN), RP_OPTIONS(rp_full_options, .dtype = RP_I64));
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
        assert_int_equal(rp_op_info_get(i, &info), RP_OK);
        for (int round = 0; round < 60; round++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *pool[] = {NULL,
                                 wrong,
                                 dead,
                                 ones(4),
                                 rp_full(RP_NO_DIMS, rp_i64(2), RP_OPTIONS(rp_full_options, .dtype = RP_F64)),
                                 rp_zeros(RP_DIMS(0, 3)),
                                 rp_full(RP_DIMS(2, 3), rp_i64(-7), RP_OPTIONS(rp_full_options, .dtype = RP_I64)),
                                 rp_full(RP_DIMS(2, 2), rp_bool(true), RP_OPTIONS(rp_full_options, .dtype = RP_BOOL)),
                                 rp_full(RP_DIMS(1, 2, 4, 4), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F16)),
                                 rp_full(RP_DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), rp_i64(1),
                                         RP_OPTIONS(rp_full_options, .dtype = RP_BF16))};
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
                if (strncmp(at, "SymInt", 6) == 0) at += 3; /* and "Int" as int */
                bool tensor = strncmp(at, "Tensor", 6) == 0;
                if (strncmp(at, "int[]", 5) == 0 || strncmp(at, "Int[]", 5) == 0)
                    a = (rp_attr){.kind = RP_ATTR_INTS, .n = (size_t)round % 4, .v.ints = ints + round % 5};
                else if (strncmp(at, "int", 3) == 0 || strncmp(at, "Int", 3) == 0)
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
        "hostile(Tensor self, str x=a) -> Tensor",
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
    rp_function f = {.struct_size = sizeof f, .forward = {exp_body, NULL, 0, "f"}, .backward = pass_back};
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
    rp_tensor *i64 = rp_full(RP_DIMS(2), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), *x = ones(2),
              *plain = ones(2), *out[2];
    refuses(rp_set_requires_grad(i64, true));
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    rp_tensor *y = rp_mul(x, x), *sum = rp_sum(y);
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

/* ---- handles that were released: the answer says so, whatever is asked of them, and says what they were */

static void sine(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sin(in[0]);
}

#define GONE(what, expression)                                                                                         \
    do {                                                                                                               \
        (void)(expression);                                                                                            \
        FAILED(RP_ERROR_STATE, what " was released already");                                                          \
    } while (0)
#define GONE_VOID(what, call) GONE(what, ((call), 0))

static void functions_are_gone(void) {
    rp_tensor *x = ones(4), *y = NULL;
    rp_explain_entry entry;
    rp_compiled *all[] = {rp_plain((rp_fn){sine, NULL, 0, "sine"}), rp_compile((rp_fn){sine, NULL, 0, "sine"}, NULL),
                          NULL};
    OK(rp_make_graphed_callables(
        &(rp_graphed_callable){.fn = {sine, NULL, 0, "sine"}, .args = &x, .n_args = 1, .n_out = 1}, 1, NULL, &all[2]));
    for (int k = 0; k < 3; k++) {
        OK(rp_call(all[k], &x, 1, &y, 1));
        rp_compiled_release(all[k]);
        GONE("the function `sine`", rp_call(all[k], &x, 1, &y, 1));
        assert_true(rp_is_error(y));
        GONE("the function `sine`", rp_call_named(all[k], (const char *const[]){"x"}, &x, 1, &y, 1));
        GONE("the function `sine`", rp_explain_count(all[k]));
        GONE("the function `sine`", rp_explain_get(all[k], 0, &entry));
        GONE_VOID("the function `sine`", rp_compiled_release(all[k]));
    }
    rp_set_requires_grad(x, true); /* what a tape needs of a released one stays, but not for calls */
    OK(rp_make_graphed_callables(
        &(rp_graphed_callable){.fn = {sine, NULL, 0, "sine"}, .args = &x, .n_args = 1, .n_out = 1}, 1, NULL, &all[2]));
    OK(rp_call(all[2], &x, 1, &y, 1));
    rp_compiled_release(all[2]);
    GONE("the function `sine`", rp_call(all[2], &x, 1, &y, 1));
    GONE_VOID("the function `sine`", rp_compiled_release(all[2]));
}

/* A reference that a program does not have is no reference, whoever else holds the graph. */
static rp_status keep_lent(void *ctx, const rp_ir *graph, void **compiled) {
    rp_ir *lent = *compiled = (rp_ir *)(uintptr_t)graph;
    GONE_VOID("the rp_ir `sine`", rp_ir_release(lent));
    *(rp_ir **)ctx = rp_ir_retain(lent);
    rp_ir_release(rp_ir_retain(lent));
    return RP_OK;
}
static rp_status run_lent(void *ctx, void *compiled, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    return rp_ir_run(compiled, in, n_in, out, n_out);
}

static void traces_are_gone(void) {
    rp_tensor *x = ones(4), *y = NULL;
    const char none[] = "graph \"none\" () { return }";
    rp_ir *other = rp_ir_parse(none, strlen(none)), *failed = rp_ir_parse("no graph", 8);
    (void)rp_error_take();
    for (int k = 0; k < 2; k++) rp_ir_release(failed); /* nobody's to release */
    assert_ptr_equal(rp_ir_retain(failed), failed);
    assert_string_equal(rp_ir_name(failed), "");
    assert_false(rp_failed());
    complains(rp_ir_text(failed, NULL, 0));
    for (int k = 0; k < 2; k++) {
        rp_ir *ir = k ? rp_ir_new("sine") : rp_trace((rp_fn){sine, NULL, 0, "sine"}, &x, 1, 1);
        rp_ir *again = rp_ir_retain(ir);
        assert_ptr_equal(again, ir);
        rp_ir_release(again);
        OK(rp_ir_check(ir));
        const rp_ir_block *body = rp_ir_body(ir);
        rp_ir_node node = {.struct_size = sizeof node};
        rp_ir_value_info info = {.struct_size = sizeof info};
        rp_ir_symbol symbol = {.struct_size = sizeof symbol};
        size_t at = 0;
        int64_t value, word = INT64_MIN + 8; /* as sizes that are symbols are written */
        rp_ir_release(ir);
        GONE_VOID("the rp_ir `sine`", rp_ir_release(ir));
        GONE("the rp_ir `sine`", rp_ir_retain(ir));
        GONE("the rp_ir `sine`", rp_ir_text(ir, NULL, 0));
        GONE("the rp_ir `sine`", rp_ir_check(ir));
        GONE("the rp_ir `sine`", rp_ir_equal(ir, other));
        GONE("the rp_ir `sine`", rp_ir_equal(other, ir));
        GONE("the rp_ir `sine`", rp_ir_run(ir, &x, 1, &y, 1));
        GONE("the rp_ir `sine`", rp_ir_name(ir));
        GONE("the rp_ir `sine`", rp_ir_body(ir));
        GONE("the rp_ir `sine`", rp_ir_next(ir, body, &at, &node));
        GONE("the rp_ir `sine`", rp_ir_node_get(ir, 0, &node));
        GONE("the rp_ir `sine`", rp_ir_node_region(ir, 0, 0));
        GONE("the rp_ir `sine`", rp_ir_node_writes(ir, 0, 0));
        GONE("the rp_ir `sine`", rp_ir_operands(ir, 0, "self", &at));
        GONE("the rp_ir `sine`", rp_ir_attr(ir, 0, "alpha"));
        GONE("the rp_ir `sine`", rp_ir_value_count(ir));
        GONE("the rp_ir `sine`", rp_ir_value_get(ir, 0, &info));
        GONE("the rp_ir `sine`", rp_ir_symbol_count(ir));
        GONE("the rp_ir `sine`", rp_ir_symbol_get(ir, 0, &symbol));
        GONE("the rp_ir `sine`", rp_ir_symbols_of_args(ir, &x, 1, &value));
        if (rp_ir_is_symbolic(word)) {
            GONE("the rp_ir `sine`", rp_ir_symbol_of(ir, word));
            GONE("the rp_ir `sine`", rp_ir_size_hint(ir, word));
            GONE("the rp_ir `sine`", rp_ir_size_value(ir, word, &value, &value));
            GONE("the rp_ir `sine`", rp_ir_size_text(ir, word, NULL, 0));
        }
        GONE("the rp_ir `sine`", rp_ir_add_captured(ir, x));
        GONE("the rp_ir `sine`", rp_ir_add_const(ir, &value, NULL, 0, RP_I64));
        GONE("the rp_ir `sine`", rp_ir_add_op(ir, NULL, "sin", NULL, 0, NULL, 0, NULL, 0));
        GONE("the rp_ir `sine`", rp_ir_add_assign(ir, NULL, 0, 0));
        GONE("the rp_ir `sine`", rp_ir_set_results(ir, NULL, 0));
        rp_ir_type type = {.struct_size = sizeof type, .dtype = RP_F32};
        GONE("the rp_ir `sine`", rp_ir_add_arg(ir, &type));
    }
    rp_ir_release(other);
    rp_ir *kept = NULL; /* of a backend: its own, the graph's owner is the compiled function */
    OK(rp_register_backend(&(rp_backend){
        .struct_size = sizeof(rp_backend), .name = "lent", .compile = keep_lent, .run = run_lent, .ctx = &kept}));
    rp_compiled *f = rp_compile((rp_fn){sine, NULL, 0, "sine"}, RP_OPTIONS(rp_compile_options, .backend = "lent"));
    OK(rp_call(f, &x, 1, &y, 1));
    rp_compiled_release(f);
    OK(rp_ir_check(kept));
    rp_ir_release(kept);
    GONE_VOID("the rp_ir `sine`", rp_ir_release(kept));
    OK(rp_unregister_backend("lent"));
}

static void released_handles_are_refused(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    functions_are_gone();
    traces_are_gone();
    rp_tensor *p = ones(3);
    rp_set_requires_grad(p, true);
    for (int k = 0; k < 2; k++) {
        rp_optimizer *o = k ? rp_sgd(&p, 1, 0.1, NULL) : rp_adam(&p, 1, 0.1, NULL);
        rp_optimizer_release(o);
        GONE("the optimizer", rp_optimizer_step(o));
        GONE("the optimizer", rp_optimizer_zero_grad(o, true));
        GONE("the optimizer", rp_optimizer_set_lr(o, 0, 1));
        GONE("the optimizer", rp_optimizer_lr(o, 0));
        GONE("the optimizer", rp_optimizer_state(o, 0, 0, "step"));
        GONE("the optimizer", rp_sgd_add_group(o, &p, 1, 0.1, NULL));
        GONE("the optimizer", rp_adam_add_group(o, &p, 1, 0.1, NULL));
        GONE_VOID("the optimizer", rp_optimizer_release(o));
    }
    rp_generator *g = rp_generator_new(rp_cpu(), 3);
    rp_generator_release(g);
    GONE("the generator", rp_generator_seed(g, 1));
    GONE("the generator", rp_generator_get(g, NULL, NULL));
    GONE("the generator", rp_rand(RP_DIMS(3), RP_OPTIONS(rp_rand_options, .generator = g)));
    GONE_VOID("the generator", rp_generator_release(g));
    rp_generator_release(rp_default_generator(rp_cpu())); /* nobody's to release */
    OK(rp_generator_seed(rp_default_generator(rp_cpu()), 1));

    rp_stream *s = rp_stream_new(rp_cpu()), *home = rp_current_stream(rp_cpu());
    rp_event *e = rp_event_new(rp_cpu(), false);
    OK(rp_set_current_stream(s));
    rp_stream_release(s); /* still the thread's */
    GONE_VOID("the stream", rp_stream_release(s));
    OK(rp_event_record(e, s));
    OK(rp_set_current_stream(home));
    GONE("the stream", rp_set_current_stream(s));
    GONE("the stream", rp_stream_synchronize(s));
    GONE("the stream", rp_stream_query(s));
    GONE("the stream", rp_event_record(e, s));
    GONE("the stream", rp_stream_wait_event(s, e));
    rp_event_release(e);
    GONE("the event", rp_event_record(e, home));
    GONE("the event", rp_stream_wait_event(home, e));
    GONE("the event", rp_event_synchronize(e));
    GONE("the event", rp_event_query(e));
    GONE("the event", rp_event_elapsed_ms(e, e));
    GONE_VOID("the event", rp_event_release(e));

    rp_graph *graph = rp_graph_new();
    rp_pool *pool = rp_pool_new(rp_cpu());
    rp_pool_release(pool);
    GONE_VOID("the pool", rp_pool_release(pool));
    GONE("the pool", rp_graph_begin(graph, rp_cpu(), RP_OPTIONS(rp_graph_options, .pool = pool)));
    GONE("the stream", rp_graph_begin(graph, rp_cpu(), RP_OPTIONS(rp_graph_options, .stream = s)));
    OK(rp_graph_begin(graph, rp_cpu(), NULL));
    (void)rp_sin(p);
    OK(rp_graph_end(graph));
    rp_pool *lent = rp_graph_pool(graph);
    GONE_VOID("the pool", rp_pool_release(lent)); /* it is the graph's */
    OK(rp_graph_replay(graph));
    rp_graph_release(graph);
    GONE("the graph", rp_graph_replay(graph));
    GONE("the graph", rp_graph_begin(graph, rp_cpu(), NULL));
    GONE("the graph", rp_graph_end(graph));
    GONE("the graph", rp_graph_reset(graph));
    GONE("the graph", rp_graph_instantiate(graph));
    GONE("the graph", rp_graph_repoint(graph, p, p));
    GONE("the graph", rp_graph_pool(graph));
    GONE_VOID("the graph", rp_graph_release(graph));
    for (int k = 0; k < 300; k++) { /* others come and go: the old ones are looked at all the same */
        rp_event *other = rp_event_new(rp_cpu(), false);
        rp_graph_release(rp_graph_new());
        rp_event_release(other);
        if (k < 50) GONE("the graph", rp_graph_replay(graph));
    }
    (void)rp_graph_replay(graph);
    assert_int_not_equal(rp_error_take(), RP_OK);
    OK(rp_scope_end(scope, NULL, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_handles_are_refused),
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
        CASE(buffers_of_any_size),
        CASE(every_op_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
