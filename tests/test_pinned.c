/* Page-locked memory of the host, and copies between it and a CUDA device that go on behind the call; copies to a device in
   general. On the emulator of CUDA, or a GPU; without either, what a machine with a CPU alone says. */
/* ctest: labels=cuda timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>
#include <reprise_io.h>

#include "core/alloc.h"
#include "support/cuda.h"
#include "support/in_scope.h"

static bool have_cuda;

enum { ROWS = 64, COLUMNS = 33 };

static rp_tensor *numbers(void) {
    return rp_reshape(
        rp_arange(rp_i64(0), rp_i64(ROWS * COLUMNS), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)),
        RP_DIMS(ROWS, COLUMNS));
}

static void equal(rp_tensor *a, rp_tensor *b) {
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS];
    assert_int_equal(rp_numel(a), ROWS * COLUMNS);
    OK(rp_to_host(a, x, sizeof x));
    OK(rp_to_host(b, y, sizeof y));
    assert_memory_equal(x, y, sizeof x);
}

static bool lies_on(const rp_tensor *t, rp_device d) {
    return rp_device_of(t).type == d.type && rp_device_of(t).index == d.index;
}

/* What needs no device: refusals, and a device that is not there. */
static void on_a_cpu_alone(void **state) {
    (void)state;
    rp_tensor *x = numbers();
    assert_false(rp_is_pinned(x));
    assert_ptr_equal(rp_data(rp_to_device(x, rp_cpu(), true)), rp_data(x));
    (void)rp_to_device(x, rp_cuda(60), false);
    FAILED(have_cuda ? RP_ERROR_DEVICE : RP_ERROR_UNAVAILABLE, "to_device");
    (void)rp_to_device(NULL, rp_cpu(), false);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "to_device");
    (void)rp_empty_pinned(RP_DIMS(-1), RP_F32);
    assert_true(rp_failed());
    (void)rp_error_take();
    (void)rp_zeros(RP_DIMS(2), RP_OPTIONS(rp_zeros_options, .pin_memory = RP_TRUE));
    FAILED(RP_ERROR_UNAVAILABLE, "rp_pin_memory");
    if (have_cuda) return;
    (void)rp_pin_memory(x);
    FAILED(RP_ERROR_UNAVAILABLE, "pin_memory");
    (void)rp_empty_pinned(RP_DIMS(2), RP_F32);
    FAILED(RP_ERROR_UNAVAILABLE, "empty_pinned");
}

static void pinned_tensors(void **state) {
    (void)state;
    if (!have_cuda) skip();
    rp_tensor *x = numbers(), *p = rp_pin_memory(x), *turned = rp_pin_memory(rp_transpose(x, 0, 1));
    FINE();
    assert_true(rp_is_pinned(p) && !rp_is_pinned(x) && rp_is_pinned(rp_select(p, 0, 3)));
    assert_true(lies_on(p, rp_cpu()) && rp_data(p) != rp_data(x));
    equal(p, x);
    equal(rp_contiguous(rp_transpose(turned, 0, 1)), x);
    assert_ptr_equal(rp_data(rp_pin_memory(p)), rp_data(p));
    equal(rp_add(p, p), rp_mul_scalar(x, rp_f64(2))); /* it is a tensor like others */
    assert_int_equal(rp_numel(rp_empty_pinned(RP_DIMS(0, 3), RP_I64)), 0);
    (void)rp_pin_memory(rp_to_device(x, rp_cuda(0), false));
    FAILED(RP_ERROR_DEVICE, "only tensors on the CPU");
}

/* Out and back again behind the host, over several streams; what is released while a copy runs stays until it is done. */
static void behind_the_host(void **state) {
    (void)state;
    if (!have_cuda) skip();
    rp_tensor *x = numbers();
    for (int round = 0; round < 3; round++) {
        rp_scope scope = rp_scope_begin();
        rp_stream *side = rp_stream_new(rp_cuda(0)), *own = rp_current_stream(rp_cuda(0));
        OK(rp_set_current_stream(side));
        rp_tensor *p = rp_retain(rp_pin_memory(x)), *y = rp_retain(rp_to_device(p, rp_cuda(0), true));
        rp_release(p);
        OK(rp_set_current_stream(own));
        OK(rp_stream_wait_stream(own, side));
        rp_tensor *twice = rp_add(y, y), *back = rp_empty_pinned(RP_DIMS(ROWS, COLUMNS), RP_F32), *given_up;
        rp_copy_(back, twice, true);
        given_up = rp_retain(rp_empty_pinned(RP_DIMS(ROWS, COLUMNS), RP_F32));
        rp_copy_(given_up, twice, true);
        rp_release(given_up);
        OK(rp_stream_synchronize(own));
        equal(back, rp_mul_scalar(x, rp_f64(2)));
        rp_release(y);
        rp_stream_release(side);
        FINE();
        OK(rp_scope_end(scope, NULL, 0));
    }
    /* what lies otherwise, or is of another type, is copied at once */
    rp_tensor *half = rp_pin_memory(rp_to_dtype(x, RP_F16)), *y = rp_zeros(RP_DIMS(ROWS, COLUMNS));
    y = rp_to_device(y, rp_cuda(0), false);
    rp_copy_(y, half, true);
    equal(y, rp_to_dtype(half, RP_F32));
    rp_tensor *column = rp_pin_memory(x), *wide = rp_to_device(rp_transpose(column, 0, 1), rp_cuda(0), true);
    assert_true(rp_is_contiguous(wide));
    equal(rp_contiguous(rp_transpose(wide, 0, 1)), x);
}

static void gradients_and_formats(void **state) {
    (void)state;
    if (!have_cuda) skip();
    rp_tensor *x = numbers(), *leaf = rp_clone(x);
    OK(rp_set_requires_grad(leaf, true));
    rp_tensor *y = rp_to_device(leaf, rp_cuda(0), false);
    assert_true(lies_on(y, rp_cuda(0)));
    OK(rp_backward(rp_sum(rp_mul(y, y)), NULL, NULL));
    assert_true(lies_on(rp_grad_of(leaf), rp_cpu()));
    equal(rp_grad_of(leaf), rp_mul_scalar(x, rp_f64(2)));
    OK(rp_set_grad(leaf, NULL));
    rp_tensor *image = rp_rand(RP_DIMS(2, 3, 4, 5)),
              *last = rp_contiguous(image, RP_OPTIONS(rp_contiguous_options, .memory_format = RP_CHANNELS_LAST));
    rp_tensor *there = rp_to_device(last, rp_cuda(0), false), *again = rp_to_device(there, rp_cpu(), false);
    assert_true(rp_is_contiguous_format(there, RP_CHANNELS_LAST) && rp_is_contiguous_format(again, RP_CHANNELS_LAST));
    assert_true(rp_item(rp_all(rp_eq(again, image))).v.b);
}

static void refusals(void **state) {
    (void)state;
    if (!have_cuda) skip();
    rp_tensor *p = rp_pin_memory(numbers()), *y = rp_to_device(p, rp_cuda(0), false);
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, rp_cuda(0), NULL));
    (void)rp_copy_(y, p, true);
    FAILED(RP_ERROR_CAPTURE, "copying");
    assert_true(rp_graph_end(g) != RP_OK);
    (void)rp_error_take();
    rp_graph_release(g);
    g = rp_graph_new();
    OK(rp_graph_begin(g, rp_cuda(0), NULL));
    rp_tensor *inside = rp_empty_pinned(RP_DIMS(4), RP_F32); /* no part of the capture, and does not end it */
    FINE();
    assert_true(rp_is_pinned(inside));
    (void)rp_add(y, y);
    OK(rp_graph_end(g));
    rp_graph_release(g);
    for (uint64_t n = 0, live = 0;; n++) { /* no memory at one allocation after the other */
        rp_scope inner = rp_scope_begin();
        rp__alloc_fail_at(n);
        rp_tensor *t = rp_to_device(rp_pin_memory(p), rp_cuda(0), true), *q = rp_empty_pinned(RP_DIMS(3), RP_F32);
        rp__alloc_fail_at(0);
        const bool failed = rp_failed();
        assert_true(!failed || rp_error_take() == RP_ERROR_OUT_OF_MEMORY);
        (void)t, (void)q;
        OK(rp_scope_end(inner, NULL, 0));
        OK(rp_synchronize(rp_cuda(0)));
        if (n == 0) live = rp__alloc_live();
        assert_true(rp__alloc_live() <= live + 4);
        if (n > 0 && !failed) break;
    }
}

/* Batches through page-locked memory are those of a plain loader, also where a slot is filled again while the device copies. */
static void batches(void **state) {
    (void)state;
    rp_tensor *arrays[] = {numbers(), rp_arange(rp_i64(0), rp_i64(ROWS), rp_i64(1))}, *a[2], *b[2];
    if (!have_cuda) {
        rp_loader_release(rp_loader_new(arrays, 2, 7, RP_OPTIONS(rp_loader_options, .pin_memory = true)));
        FAILED(RP_ERROR_UNAVAILABLE, "");
        skip();
    }
    OK(rp_set_default_device(rp_cuda(0)));
    for (int workers = 0; workers < 3; workers += 2) {
        rp_loader *plain = rp_loader_new(arrays, 2, 7, RP_OPTIONS(rp_loader_options, .shuffle = true, .seed = 3));
        rp_loader *pinned = rp_loader_new(
            arrays, 2, 7,
            RP_OPTIONS(rp_loader_options, .shuffle = true, .seed = 3, .workers = workers, .pin_memory = true));
        rp_tensor *sum = rp_retain(rp_zeros(RP_NO_DIMS));
        for (int round = 0; round < 25; round++) { /* two epochs and a half */
            rp_scope scope = rp_scope_begin();
            if (round == 14) {
                OK(rp_loader_seek(plain, 8, 1, 4));
                OK(rp_loader_seek(pinned, 8, 1, 4));
            }
            const bool more = rp_loader_next(plain, a, 2);
            assert_true(rp_loader_next(pinned, b, 2) == more);
            FINE();
            for (int k = 0; k < 2 && more; k++) {
                assert_true(lies_on(b[k], rp_cuda(0)));
                assert_true(rp_item(rp_all(rp_eq(a[k], b[k]))).v.b);
            }
            if (more) rp_add_(sum, rp_sum(b[0])); /* not waited for */
            OK(rp_scope_end(scope, NULL, 0));
        }
        rp_release(sum);
        rp_loader_release(plain);
        rp_loader_release(pinned);
    }
    OK(rp_set_default_device(rp_cpu()));
}

/* A module's parameters, buffers and gradients go to a device and back; a device that is not there changes nothing. */
static void modules(void **state) {
    (void)state;
    rp_module *m = rp_module_new("net");
    rp_linear_layer fc;
    rp_batch_norm_layer norm;
    OK(rp_linear_add(m, "fc", &fc, COLUMNS, 3, true));
    OK(rp_batch_norm_add(m, "norm", &norm, 3, NULL));
    rp_tensor *weight = fc.weight, *x = numbers();
    rp_tensor *y = rp_linear_layer_forward(&fc, x);
    OK(rp_backward(rp_sum(y), NULL, NULL));
    rp_tensor *slope = rp_clone(rp_grad_of(fc.weight));
    OK(rp_module_to_device(m, rp_cpu()));
    assert_ptr_equal(fc.weight, weight);
    assert_int_not_equal(rp_module_to_device(m, rp_cuda(60)), RP_OK);
    FAILED(have_cuda ? RP_ERROR_DEVICE : RP_ERROR_UNAVAILABLE, "cuda:60");
    assert_ptr_equal(fc.weight, weight);
    if (have_cuda) {
        size_t n;
        OK(rp_module_to_device(m, rp_cuda(0)));
        const rp_named_tensor *all = rp_module_state(m, &n);
        assert_int_equal(n, 7);
        for (size_t i = 0; i < n; i++) assert_true(lies_on(all[i].tensor, rp_cuda(0)));
        assert_true(rp_requires_grad(fc.weight) && !rp_requires_grad(norm.running_mean));
        rp_tensor *there = rp_linear_layer_forward(&fc, rp_to_device(x, rp_cuda(0), false));
        assert_true(lies_on(there, rp_cuda(0)));
        assert_true(rp_item(rp_allclose(rp_to_device(there, rp_cpu(), false), y, 1e-4, 1e-3, false)).v.b);
        OK(rp_module_to_device(m, rp_cpu()));
        assert_true(rp_item(rp_equal(fc.weight, weight)).v.b);
        assert_true(lies_on(norm.num_batches_tracked, rp_cpu()));
    }
    assert_true(rp_item(rp_equal(rp_grad_of(fc.weight), slope)).v.b);
    rp_module_release(m);
}

int main(void) {
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(on_a_cpu_alone, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(pinned_tensors, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(behind_the_host, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(gradients_and_formats, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(batches, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(modules, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(refusals, scope_setup, scope_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
