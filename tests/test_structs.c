/* Structs of the interface that may grow: a program of an older version gives shorter ones, one of a newer version longer ones,
   and one that forgot struct_size is told so. Numbers as scalars. The log of kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "support/check.h"

enum { ROOM = 512, BEHIND = 16 };

/* Calls something with a struct of `known` bytes that is given in all sizes; returns what the call did. */
typedef rp_status taker(const void *options);

static void takes(taker *take, const void *sample, size_t known) {
    _Alignas(max_align_t) unsigned char given[ROOM];
    memset(given, 0, sizeof given);
    memcpy(given, sample, known);
    const size_t unset[] = {0, sizeof(size_t) - 1, (size_t)1 << 20, SIZE_MAX};
    for (size_t k = 0; k < sizeof unset / sizeof *unset; k++) {
        memcpy(given, &unset[k], sizeof unset[k]);
        FAILS(RP_ERROR_INVALID_ARGUMENT, "use RP_OPTIONS or sizeof", take(given));
    }
    size_t size = known;
    memcpy(given, &size, sizeof size);
    OK(take(given));
    size = known + BEHIND;
    memcpy(given, &size, sizeof size);
    OK(take(given)); /* fields that this library does not know, and that are not used */
    given[known + BEHIND - 1] = 1;
    FAILS(RP_ERROR_INVALID_ARGUMENT, "a newer one is needed", take(given));
    given[known + BEHIND] = 1; /* not of the struct */
    given[known + BEHIND - 1] = 0;
    OK(take(given));
}

static rp_tensor *leaf(void) {
    rp_tensor *x = rp_ones(RP_DIMS(2));
    OK(rp_set_requires_grad(x, true));
    return x;
}
static rp_status made(rp_compiled *f) {
    rp_status status = rp_error_status();
    if (status == RP_OK) rp_compiled_release(f);
    return status;
}
static void twice(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_i64(2));
}
static rp_status passes(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out, size_t n_out,
                        rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)saved, (void)n_saved, (void)n_out, (void)n_in;
    grad_in[0] = grad_out[0];
    return RP_OK;
}

static rp_status take_backward(const void *o) { return rp_backward(rp_sum(leaf()), NULL, o); }
static rp_status take_grad(const void *o) {
    rp_tensor *x = leaf(), *y = rp_sum(x), *g;
    return rp_grad(&y, 1, &x, 1, NULL, o, &g);
}
static rp_status take_compile(const void *o) { return made(rp_compile((rp_fn){twice, NULL, 0, "twice"}, o)); }
static rp_status take_graphed(const void *o) {
    rp_compiled *f;
    rp_tensor *x = rp_ones(RP_DIMS(2));
    rp_graphed_callable c = {.fn = {twice, NULL, 0, "twice"}, .args = &x, .n_args = 1, .n_out = 1};
    rp_status status = rp_make_graphed_callables(&c, 1, o, &f);
    rp_compiled_release(f);
    return status;
}
static rp_status take_graph(const void *o) {
    rp_graph *g = rp_graph_new();
    rp_status status = rp_graph_begin(g, rp_cpu(), o);
    if (status == RP_OK) status = rp_graph_end(g);
    rp_graph_release(g);
    return status;
}
static rp_status take_function(const void *o) {
    rp_tensor *x = leaf(), *y;
    return rp_function_apply(o, &x, 1, &y, 1);
}
static rp_status take_conv(const void *o) {
    rp_conv2d_layer l;
    rp_status status = rp_conv2d_layer_init(&l, 1, 1, 2, 2, o);
    rp_conv2d_layer_release(&l);
    return status;
}
static rp_status take_adam(const void *o) {
    rp_tensor *x = leaf();
    rp_optimizer_release(rp_adam(&x, 1, 0.1, o));
    return rp_error_status();
}
static rp_status take_sgd(const void *o) {
    rp_tensor *x = leaf();
    rp_optimizer_release(rp_sgd(&x, 1, 0.1, o));
    return rp_error_status();
}
static rp_status take_statistics(const void *o) {
    _Alignas(max_align_t) unsigned char room[ROOM];
    size_t size;
    memcpy(&size, o, sizeof size);
    memset(room, 0xff, sizeof room);
    memcpy(room, &size, sizeof size);
    rp_status status = rp_memory_stats_get(rp_cpu(), (rp_memory_stats *)(void *)room);
    if (status != RP_OK) return status;
    for (size_t k = sizeof(rp_memory_stats); k < size; k++) assert_int_equal(room[k], 0); /* unknown here: none */
    assert_int_equal(room[size], 0xff);
    return RP_OK;
}

static void test_sizes(void **state) {
    (void)state;
    takes(take_backward, &(rp_backward_options){0}, sizeof(rp_backward_options));
    takes(take_grad, &(rp_backward_options){0}, sizeof(rp_backward_options));
    takes(take_compile, &(rp_compile_options){0}, sizeof(rp_compile_options));
    takes(take_graphed, &(rp_graphed_options){0}, sizeof(rp_graphed_options));
    takes(take_graph, &(rp_graph_options){0}, sizeof(rp_graph_options));
    takes(take_function, &(rp_function){.forward = {twice, NULL, 0, "twice"}, .backward = passes}, sizeof(rp_function));
    takes(take_conv, &(rp_conv2d_options){0}, sizeof(rp_conv2d_options));
    takes(take_adam, &(rp_adam_options){0}, sizeof(rp_adam_options));
    takes(take_sgd, &(rp_sgd_options){0}, sizeof(rp_sgd_options));
}

static void test_filled(void **state) {
    (void)state;
    for (size_t size = sizeof(size_t); size <= sizeof(rp_memory_stats) + BEHIND; size += sizeof(size_t))
        OK(take_statistics(&size));
    const size_t unset[] = {0, SIZE_MAX};
    for (int k = 0; k < 2; k++) FAILS(RP_ERROR_INVALID_ARGUMENT, "struct_size", take_statistics(&unset[k]));
}

static void test_shorter(void **state) { /* what an older program lacks is zero, whatever lies behind its struct */
    (void)state;
    struct {
        size_t struct_size;
        bool retain_graph;
        bool behind[7];
    } old = {offsetof(rp_backward_options, create_graph), true, {true, true, true, true, true, true, true}};
    rp_tensor *x = leaf(), *y = rp_sum(rp_mul(x, x));
    OK(rp_backward(y, NULL, (const void *)&old));
    assert_false(rp_requires_grad(rp_grad_of(x)));
    OK(rp_backward(y, NULL, NULL)); /* it was retained */
}

static void test_integers(void **state) { /* every width; scripts/check_headers.sh sees that 0.5 is refused */
    (void)state;
    int8_t a = -7;
    uint16_t b = 65535;
    int64_t c = INT64_MIN;
    unsigned long long d = INT64_MAX;
    bool e = true;
    const struct {
        rp_scalar have;
        int64_t want;
    } each[] = {{rp_i64(a), -7},        {rp_i64(b), 65535}, {rp_i64(c), INT64_MIN},           {rp_i64(d), INT64_MAX},
                {rp_i64(e ? 3 : 4), 3}, {rp_i64(e), 1},     {(rp_i64)(INT64_MAX), INT64_MAX}, {rp_i64(RP_BF16), 4}};
    for (size_t k = 0; k < sizeof each / sizeof *each; k++) {
        assert_int_equal(each[k].have.kind, RP_SCALAR_I64);
        assert_int_equal(each[k].have.v.i, each[k].want);
    }
}

static void count(void *ctx, const char *op, const char *site, const char *loop, const char *c, const char *cuda) {
    (void)op, (void)site, (void)loop, (void)c, (void)cuda;
    ++*(int *)ctx;
}

static void test_kernel_log(void **state) { /* a log is put aside, and set again with what it was given */
    (void)state;
    int outer = 0, inner = 0;
    void *ctx = &inner, *none = &inner;
    assert_null(rp_set_kernel_log(count, &outer, &none));
    assert_null(none);
    rp_tensor *x = rp_sin(rp_ones(RP_DIMS(3)));
    int before = outer;
    assert_true(before > 0);
    rp_kernel_log *old = rp_set_kernel_log(count, &inner, &ctx);
    assert_ptr_equal(ctx, &outer);
    (void)rp_cos(x);
    assert_int_equal(inner, 1);
    assert_int_equal(outer, before);
    rp_set_kernel_log(old, ctx, NULL);
    (void)rp_exp(x);
    assert_int_equal(outer, before + 1);
    rp_set_kernel_log(NULL, NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_sizes, take_error),      cmocka_unit_test_teardown(test_filled, take_error),
        cmocka_unit_test_teardown(test_shorter, take_error),    cmocka_unit_test_teardown(test_integers, take_error),
        cmocka_unit_test_teardown(test_kernel_log, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
