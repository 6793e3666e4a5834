/* Memory and kernels of the program's own in graphs: wrapped memory that is declared stable, rp_launch and rp_cuda_launch. On the
   CPU, then on CUDA (the emulator, or a GPU with REPRISE_TEST_CUDA=real). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <reprise.h>

#include "kernel/cuda/nvrtc.h"
#include "support/each_device.h"
#include "tensor/tensor.h"

/* Times that `kind` with `reason` happened; 0: there is no such entry. */
static int64_t fact(rp_compiled *f, const char *kind, const char *reason) {
    int64_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        OK(rp_explain_get(f, k, &e));
        if (strcmp(e.kind, kind) == 0 && strcmp(e.reason, reason) == 0) n += e.count;
    }
    return n;
}

/* ---- wrapped memory ---- */

static int deleted;
static void release_owner(void *owner) {
    deleted++;
    rp_release(owner);
}

/* The same values in memory that the library does not know. */
static rp_tensor *wrapped(rp_tensor *t) {
    const int64_t size[] = {rp_size(t, 0), rp_size(t, 1)};
    return rp_from_blob(rp_data(t), size, 2, NULL, RP_F32, device, release_owner, rp_retain(t));
}

static void squares(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(rp_sin(in[0]), in[0]);
}

static void check_call(rp_compiled *f, rp_tensor *x) { /* forward and backward as eager */
    rp_tensor *out, *eager, *g, *expected, *y = rp_detach(x);
    OK(rp_set_requires_grad(x, true));
    OK(rp_set_requires_grad(y, true));
    OK(rp_call(f, &x, 1, &out, 1));
    squares(NULL, &y, 1, &eager, 1);
    same(out, eager);
    rp_tensor *up = rp_full(RP_DIMS(8, 64), rp_f64(0.75));
    OK(rp_grad(&out, 1, &x, 1, &up, NULL, &g));
    OK(rp_grad(&eager, 1, &y, 1, &up, NULL, &expected));
    same(g, expected);
}

static void stable_arguments_are_read_in_place(void **state) { /* of a graphed callable, forward and backward */
    (void)state;
    rp_tensor *sample = rp_rand(RP_DIMS(8, 64));
    OK(rp_set_requires_grad(sample, true));
    rp_graphed_callable c = {.fn = {squares, NULL, 0, "squares"}, .args = &sample, .n_args = 1, .n_out = 1};
    rp_compiled *f;
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    deleted = 0;
    for (int k = 0; k < 3; k++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = wrapped(rp_rand(RP_DIMS(8, 64)));
        OK(rp_declare_stable(x));
        check_call(f, x);
        OK(rp_scope_end(scope, NULL, 0));
        assert_int_equal(deleted, k); /* the graph reads the last one, and keeps it */
    }
    assert_int_equal(fact(f, "copy", "foreign-memory"), 0);
    assert_true(fact(f, "patch", "moved-input") > 0);
    check_call(f, wrapped(rp_rand(RP_DIMS(8, 64))));
    assert_int_equal(deleted, 3);
    assert_true(fact(f, "copy", "foreign-memory") > 0);
    rp_compiled_release(f);
}

static void stable_arguments_move_programs(void **state) { /* on CUDA a graph of a program copies what is not stable */
    (void)state;
    rp_compiled *f = rp_compile((rp_fn){squares, NULL, 0, "squares"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true, .wait = true));
    for (int k = 0; k < 6; k++) {
        rp_tensor *x = rp_rand(RP_DIMS(8, 64));
        if (k > 1) {
            x = wrapped(x);
            OK(rp_declare_stable(x));
        }
        check_call(f, x);
    }
    assert_int_equal(fact(f, "copy", "foreign-memory"), 0);
    assert_true(fact(f, "patch", "moved-input") > 0);
    rp_compiled_release(f);
}

static void stable_is_said_of_memory(void **state) {
    (void)state;
    FAILS(RP_ERROR_INVALID_ARGUMENT, "declare_stable", rp_declare_stable(NULL));
    rp_tensor *own = rp_rand(RP_DIMS(8, 64));
    OK(rp_declare_stable(own)); /* it is anyway */
    rp_tensor *sample = rp_rand(RP_DIMS(8, 64)), *out;
    rp_graphed_callable c = {.fn = {squares, NULL, 0, "squares"}, .args = &sample, .n_args = 1, .n_out = 1};
    rp_compiled *f;
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    rp_tensor *x = wrapped(own), *view = rp_view(x, RP_DIMS(8, 64));
    OK(rp_declare_stable(view)); /* of what it shares with x */
    OK(rp_call(f, &x, 1, &out, 1));
    assert_int_equal(fact(f, "copy", "foreign-memory"), 0);
    rp_compiled_release(f);
}

/* ---- kernels of the program's own ---- */

/* y = factor * x + 1 for n elements */
static void scale_cpu(const rp_word *p, int64_t begin, int64_t end) {
    const float *x = p[0].data;
    float *y = p[1].data;
    for (int64_t i = begin; i < end; i++) y[i] = p[2].f32 * x[i] + 1;
}
static const char scale_cuda[] =
    "extern \"C\" __global__ void scale(const float *x, float *y, float factor, long long n) {\n"
    "    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;\n"
    "    if (i < n) y[i] = factor * x[i] + 1;\n"
    "}\n";

static void *cuda_function(void) {
    static rp__kernel *kernel;
    if (!kernel) OK(rp__nvrtc_kernel(rp__device_get(device), scale_cuda, "scale", RP__KERNEL_CUDA_USER, &kernel));
    return kernel->function;
}

/* Raw pointers: what it touches is not declared. */
static rp_status scale_raw(void *x, void *y, int64_t n, float factor) {
    const rp_param p[] = {RP_VALUE(data, x), RP_VALUE(data, y), RP_VALUE(f32, factor), RP_VALUE(i64, n)};
    const rp_cuda_grid grid = {sizeof grid, {(uint32_t)(n + 63) / 64}, {64}, 0};
    return device.type == RP_DEVICE_CPU ? rp_launch("scale", scale_cpu, n, 64, p, 4)
                                        : rp_cuda_launch("scale", device, cuda_function(), &grid, p, 4);
}

static rp_status scale(rp_tensor *x, rp_tensor *y, float factor) {
    const int64_t n = rp_numel(x);
    const rp_param p[] = {RP_READS(x), RP_WRITES(y), RP_VALUE(f32, factor), RP_VALUE(i64, n)};
    const rp_cuda_grid grid = {sizeof grid, {(uint32_t)(n + 63) / 64}, {64}, 0};
    return device.type == RP_DEVICE_CPU ? rp_launch("scale", scale_cpu, n, 64, p, 4)
                                        : rp_cuda_launch("scale", device, cuda_function(), &grid, p, 4);
}

static rp_tensor *scaled(rp_tensor *x, float factor) {
    return rp_add_scalar(rp_mul_scalar(x, rp_f64((double)factor)), rp_f64(1));
}

static void launches_run(void **state) {
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(8, 640)), *y = rp_zeros(RP_DIMS(8, 640));
    uint64_t version = rp_version(y), read = rp_version(x);
    OK(scale(x, y, 3));
    same(y, scaled(x, 3));
    assert_int_equal(rp_version(y), version + 1);
    assert_int_equal(rp_version(x), read);
    OK(scale(rp_slice(x, 0, 2, 4, 1), rp_slice(y, 0, 1, 3, 1), 5)); /* the address of element 0 */
    same(rp_slice(y, 0, 1, 3, 1), scaled(rp_slice(x, 0, 2, 4, 1), 5));
    same(rp_slice(y, 0, 3, 8, 1), scaled(rp_slice(x, 0, 3, 8, 1), 3));
    OK(scale(rp_zeros(RP_DIMS(0)), rp_zeros(RP_DIMS(0)), 1));
    OK(scale_raw(rp_data(x), rp_data(y), 640, 7));
    same(rp_select(y, 0, 0), scaled(rp_select(x, 0, 0), 7));

    /* a tape that needs what a kernel wrote says so */
    rp_tensor *w = rp_rand(RP_DIMS(8, 640)), *z;
    OK(rp_set_requires_grad(w, true));
    z = rp_mul(w, y);
    OK(scale(x, y, 3));
    FAILS(RP_ERROR_VERSION, "scale", rp_backward(z, rp_ones(RP_DIMS(8, 640)), NULL));
    FAILS(RP_ERROR_STATE, "requires a gradient", scale(x, w, 3));
    bool grad = rp_set_grad_enabled(false);
    OK(scale(x, w, 3));
    (void)rp_set_grad_enabled(grad);
}

static void launches_take_streams(void **state) { /* on a stream of its own, behind what is there */
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(640)), *y = rp_zeros(RP_DIMS(640));
    OK(rp_synchronize(device));
    rp_stream *main = rp_current_stream(device), *s = rp_stream_new(device);
    OK(rp_set_current_stream(s));
    rp_tensor *doubled = rp_mul_scalar(x, rp_f64(2));
    OK(scale(doubled, y, 3));
    rp_tensor *result = rp_mul_scalar(y, rp_f64(0.5));
    OK(rp_stream_synchronize(s));
    OK(rp_set_current_stream(main));
    same(result, rp_mul_scalar(scaled(rp_mul_scalar(x, rp_f64(2)), 3), rp_f64(0.5)));
    rp_stream_release(s);
}

static void launches_are_captured(void **state) {
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(640)), *other = rp_rand(RP_DIMS(640));
    rp_tensor *y = rp_zeros(RP_DIMS(640));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    OK(scale(x, y, 3)); /* y is written from outside of the pool */
    rp_tensor *z = rp_mul(y, x), *t = rp_empty(RP_DIMS(640));
    OK(scale(z, t, 5));
    OK(rp_graph_end(g));
    same(y, rp_zeros(RP_DIMS(640)));
    uint64_t version = rp_version(y);
    OK(rp_graph_replay(g));
    assert_int_equal(rp_version(y), version + 1);
    same(t, scaled(rp_mul(scaled(x, 3), x), 5));
    OK(rp_graph_repoint(g, x, other)); /* the kernel's own parameter, too */
    OK(rp_graph_replay(g));
    same(y, scaled(other, 3));
    same(t, scaled(rp_mul(scaled(other, 3), other), 5));
    rp_graph_release(g);

    g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    OK(scale_raw(rp_data(x), rp_data(y), 640, 3));
    z = rp_mul(y, x);
    OK(rp_graph_end(g));
    OK(rp_graph_replay(g));
    same(z, rp_mul(scaled(x, 3), x));
    FAILS(RP_ERROR_CAPTURE, "operands are not known", rp_graph_repoint(g, x, other));
    rp_graph_release(g);
}

static void own_kernel(void *raw, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_tensor *x = rp_mul_scalar(in[0], rp_f64(2)), *y = rp_empty(RP_DIMS(640)), *z = rp_empty(RP_DIMS(640));
    if (*(bool *)raw) {
        OK(scale_raw(rp_data(in[0]), rp_data(y), 640, 3));
    } else {
        OK(scale(in[0], y, 3));
    }
    OK(scale(x, z, 4));
    out[0] = rp_add(y, z);
}

static void graphed_launches_follow_arguments(void **state) {
    (void)state;
    for (int raw = 0; raw < 2; raw++) {
        bool flag = raw;
        rp_tensor *sample = rp_rand(RP_DIMS(640)), *out;
        rp_graphed_callable c = {
            .fn = {own_kernel, &flag, sizeof flag, "own"}, .args = &sample, .n_args = 1, .n_out = 1};
        rp_compiled *f;
        OK(rp_make_graphed_callables(&c, 1, NULL, &f));
        for (int k = 0; k < 3; k++) {
            rp_tensor *x = rp_rand(RP_DIMS(640));
            OK(rp_call(f, &x, 1, &out, 1));
            same(out, rp_add(scaled(x, 3), scaled(rp_mul_scalar(x, rp_f64(2)), 4)));
        }
        assert_true((fact(f, "patch", "moved-input") > 0) == !raw);
        assert_true((fact(f, "copy", "unknown-launch") > 0) == raw);
        assert_int_equal(fact(f, "copy", "library-operand"), 0);
        rp_compiled_release(f);
    }
}

/* The only thing that reads the argument is a launch that does not say so. */
static void hidden_reader(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_empty(RP_DIMS(640));
    OK(scale_raw(rp_data(in[0]), rp_data(out[0]), 640, 3));
}

static void hidden_readers_get_copies(void **state) {
    (void)state;
    rp_tensor *sample = rp_rand(RP_DIMS(640)), *out;
    rp_graphed_callable c = {.fn = {hidden_reader, NULL, 0, "hidden"}, .args = &sample, .n_args = 1, .n_out = 1};
    rp_compiled *f;
    OK(rp_make_graphed_callables(&c, 1, NULL, &f));
    for (int k = 0; k < 3; k++) {
        rp_tensor *x = rp_rand(RP_DIMS(640));
        OK(rp_call(f, &x, 1, &out, 1));
        same(out, scaled(x, 3));
    }
    rp_compiled_release(f);
}

static void launches_break_compiled_functions(void **state) {
    (void)state;
    for (int raw = 0; raw < 2; raw++) {
        bool flag = raw;
        rp_fn fn = {own_kernel, &flag, sizeof flag, "own"};
        rp_compiled *f = rp_compile(fn, NULL),
                    *whole = rp_compile(fn, RP_OPTIONS(rp_compile_options, .fullgraph = true));
        rp_tensor *out;
        for (int k = 0; k < 4; k++) {
            rp_tensor *x = rp_rand(RP_DIMS(640));
            rp_tensor *expected = rp_add(scaled(x, 3), scaled(rp_mul_scalar(x, rp_f64(2)), 4));
            OK(rp_call(f, &x, 1, &out, 1));
            same(out, expected);
            FAILS(RP_ERROR_GRAPH_BREAK, "test_outside.c:", rp_call(whole, &x, 1, &out, 1));
            same(out, expected);
        }
        assert_true(fact(f, "break", "host-read") > 0);
        rp_compiled_release(f);
        rp_compiled_release(whole);
    }
}

static void launches_check(void **state) {
    (void)state;
    rp_tensor *x = rp_rand(RP_DIMS(640));
    rp_param many[65] = {{RP_ACCESS_NONE, NULL, {NULL}}};
    const rp_cuda_grid grid = {sizeof grid, {1}, {1}, 0};
    rp_device there = device;
    const rp_param none[] = {{RP_ACCESS_READ, NULL, {NULL}}}, odd[] = {{(rp_access)9, x, {NULL}}};
#define EACH(code, fragment, ...)                                                                                      \
    do {                                                                                                               \
        if (device.type == RP_DEVICE_CPU) FAILS(code, fragment, rp_launch("mine", scale_cpu, 0, 1, __VA_ARGS__));      \
        if (device.type != RP_DEVICE_CPU)                                                                              \
            FAILS(code, fragment, rp_cuda_launch("mine", there, &there, &grid, __VA_ARGS__));                          \
    } while (0)
    EACH(RP_ERROR_INVALID_ARGUMENT, "at most 64", many, 65);
    EACH(RP_ERROR_INVALID_ARGUMENT, "mine: parameter 0 is NULL", none, 1);
    EACH(RP_ERROR_INVALID_ARGUMENT, "not an access", odd, 1);
    EACH(RP_ERROR_INVALID_ARGUMENT, "NULL", NULL, 1);
#undef EACH
    const rp_param ours[] = {RP_READS(x)};
    if (device.type == RP_DEVICE_CPU) {
        FAILS(RP_ERROR_INVALID_ARGUMENT, "kernel is NULL", rp_launch("mine", NULL, 1, 1, ours, 1));
        FAILS(RP_ERROR_INVALID_ARGUMENT, "slices", rp_launch("mine", scale_cpu, -1, 1, ours, 1));
        FAILS(RP_ERROR_INVALID_ARGUMENT, "slices", rp_launch("mine", scale_cpu, 1, 0, ours, 1));
        FAILS(RP_ERROR_DEVICE, "CUDA", rp_cuda_launch("mine", device, &there, &grid, ours, 1));
    } else {
        FAILS(RP_ERROR_INVALID_ARGUMENT, "kernel is NULL", rp_cuda_launch("mine", there, NULL, &grid, ours, 1));
        FAILS(RP_ERROR_INVALID_ARGUMENT, "grid", rp_cuda_launch("mine", there, &there, NULL, ours, 1));
        FAILS(RP_ERROR_DEVICE, "parameter 0 is on cuda:0", rp_launch("mine", scale_cpu, 1, 1, ours, 1));
    }
    rp_scope scope = rp_scope_begin();
    const rp_param dead[] = {RP_READS(rp_zeros(RP_DIMS(2)))};
    OK(rp_scope_end(scope, NULL, 0));
    FAILS(RP_ERROR_STATE, "released already", rp_launch("mine", scale_cpu, 1, 1, dead, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stable_arguments_are_read_in_place, begin, end),
        cmocka_unit_test_setup_teardown(stable_arguments_move_programs, begin, end),
        cmocka_unit_test_setup_teardown(stable_is_said_of_memory, begin, end),
        cmocka_unit_test_setup_teardown(launches_run, begin, end),
        cmocka_unit_test_setup_teardown(launches_take_streams, begin, end),
        cmocka_unit_test_setup_teardown(launches_are_captured, begin, end),
        cmocka_unit_test_setup_teardown(graphed_launches_follow_arguments, begin, end),
        cmocka_unit_test_setup_teardown(hidden_readers_get_copies, begin, end),
        cmocka_unit_test_setup_teardown(launches_break_compiled_functions, begin, end),
        cmocka_unit_test_setup_teardown(launches_check, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
