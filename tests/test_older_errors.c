/* An error that nobody has taken yet is the program's: calls after it do what they do without, and leave it as it was. What fails
   meanwhile says so in its status. */
/* ctest: timeout=120 */
#include <reprise.h>
#include <reprise_io.h>
#include <reprise_ir.h>
#include <reprise_nn.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "support/in_scope.h"

typedef rp_status work(bool broken); /* that of the call; broken: something inside fails */

/* What the functions of this test give, or an error. */
static rp_tensor *doubled(rp_tensor *x, bool broken) {
    return broken ? rp_add(x, rp_ones(RP_DIMS(7))) : rp_mul_scalar(x, rp_f64(2));
}
static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = doubled(in[0], *(const bool *)ctx);
}
static void go_on(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_lt_scalar(rp_sum(in[0]), rp_f64(100));
}
static rp_tensor *five(void) { return rp_full(RP_DIMS(5), rp_f64(1.5)); }

static rp_status in_cond(bool broken) {
    const rp_fn fn = {body, &broken, sizeof broken, "body"};
    rp_tensor *x = five(), *y;
    return rp_cond(rp_full(RP_NO_DIMS, rp_bool(true)), fn, fn, &x, 1, &y, 1);
}
static rp_status in_while(bool broken) {
    rp_tensor *x = five(), *y;
    return rp_while((rp_fn){go_on, NULL, 0, "go on"}, (rp_fn){body, &broken, sizeof broken, "body"}, &x, 1, 0, &y);
}
static rp_status in_checkpoint(bool broken) {
    rp_tensor *x = five(), *y;
    RP_TRY(rp_set_requires_grad(x, true));
    RP_TRY(rp_checkpoint((rp_fn){body, &broken, sizeof broken, "body"}, &x, 1, &y, 1));
    return rp_backward(rp_sum(y), NULL, NULL);
}
/* Regions with their gradients, traced: the trace looks at what fails in it. */
static void regions(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const rp_fn fn = {body, ctx, sizeof(bool), "body"};
    rp_tensor *a, *b;
    (void)n_in, (void)n_out;
    (void)rp_cond(rp_gt_scalar(rp_sum(in[0]), rp_f64(0)), fn, fn, in, 1, &a, 1);
    (void)rp_while((rp_fn){go_on, NULL, 0, "go on"}, fn, &a, 1, 9, &b);
    (void)rp_checkpoint(fn, &b, 1, &out[0], 1);
}
static rp_status in_compiled(bool broken) {
    rp_tensor *x = five(), *y = NULL;
    RP_TRY(rp_set_requires_grad(x, true));
    rp_compiled *f = rp_compile((rp_fn){regions, &broken, sizeof broken, "regions"}, NULL);
    rp_status status = RP_OK;
    for (int k = 0; k < 3 && status == RP_OK; k++) {
        status = rp_call(f, &x, 1, &y, 1);
        if (status == RP_OK) status = rp_backward(rp_sum(y), NULL, NULL);
    }
    rp_compiled_release(f);
    return status;
}
static rp_status in_graphed(bool broken) {
    rp_tensor *x = five(), *y;
    rp_compiled *f = NULL;
    const rp_graphed_callable c = {.fn = {body, &broken, sizeof broken, "body"}, .args = &x, .n_args = 1, .n_out = 1};
    RP_TRY(rp_make_graphed_callables(&c, 1, NULL, &f));
    const rp_status status = rp_call(f, &x, 1, &y, 1);
    rp_compiled_release(f);
    return status;
}
static rp_status in_trace_of_types(bool broken) {
    const rp_ir_type type = {sizeof type, RP_F32, rp_cpu(), 1, {broken ? -1 : 5}, {true}, false};
    bool sound = false;
    rp_ir *ir = rp_trace_types((rp_fn){body, &sound, sizeof sound, "body"}, &type, 1, 1);
    const rp_status status = rp_ir_check(ir);
    rp_ir_release(ir);
    return status;
}
static rp_status in_builder(bool broken) {
    const rp_ir_type type = {sizeof type, RP_F32, rp_cpu(), 1, {5}, {false}, false};
    rp_ir *ir = rp_ir_new("built");
    rp_ir_value x = rp_ir_add_arg(ir, &type), y = RP_IR_NONE;
    (void)rp_ir_add_op(ir, NULL, broken ? "no_such_op" : "relu", &x, 1, NULL, 0, &y, 1);
    const rp_status status = rp_ir_set_results(ir, &y, 1);
    rp_ir_release(ir);
    return status;
}
static rp_tensor *weight;
static rp_tensor *loss(void *ctx) {
    rp_set_grad(weight, NULL);
    rp_tensor *y = rp_sum(rp_mul(doubled(weight, *(const bool *)ctx), weight));
    (void)rp_backward(y, NULL, NULL);
    return y;
}
static rp_status in_lbfgs(bool broken) {
    weight = five();
    RP_TRY(rp_set_requires_grad(weight, true));
    rp_lbfgs *l = rp_lbfgs_new(&weight, 1, 0.25, RP_OPTIONS(rp_lbfgs_options, .max_iter = 20, .strong_wolfe = true));
    rp_tensor *y = rp_lbfgs_step(l, loss, &broken);
    rp_lbfgs_release(l);
    if (rp_is_error(y)) return rp_error_status();
    float now[5];
    RP_TRY(rp_to_host(weight, now, sizeof now));
    assert_true(now[0] < 0.5f); /* it has stepped, and not stopped at the first look at an error */
    return RP_OK;
}
static rp_status in_files(bool broken) {
    const char *path = broken ? "/no/such/folder/older.safetensors" : "older.safetensors";
    rp_linear_layer layer;
    rp_module *m = rp_module_new("m");
    rp_status status = rp_linear_add(m, "fc", &layer, 4, 3, true);
    if (status == RP_OK) status = rp_save(path, m, NULL);
    if (status == RP_OK) status = rp_load(path, m, NULL);
    rp_module_release(m);
    (void)unlink("older.safetensors");
    return status;
}
/* An op that is made of others. */
static rp_status in_op(bool broken) {
    rp_tensor *x = rp_ones(RP_DIMS(3, 4)), *bad = broken ? doubled(five(), true) : x;
    return rp_is_error(rp_group_norm(rp_reshape(bad, RP_DIMS(3, 4)), 2, NULL, NULL, 1e-5)) ? rp_error_status() : RP_OK;
}

static const struct {
    const char *name;
    work *of;
} works[] = {{"cond", in_cond},
             {"while", in_while},
             {"checkpoint", in_checkpoint},
             {"compiled", in_compiled},
             {"graphed", in_graphed},
             {"types", in_trace_of_types},
             {"builder", in_builder},
             {"lbfgs", in_lbfgs},
             {"files", in_files},
             {"op", in_op}};

static void calls_do_what_they_do_without(void **state) {
    (void)state;
    char older[1024], now[1024];
    for (size_t k = 0; k < sizeof works / sizeof *works; k++) {
        rp_status status = works[k].of(false);
        if (strcmp(works[k].name, "files") == 0 && status == RP_ERROR_UNAVAILABLE) { /* no reader of JSON here */
            (void)rp_error_take();
            continue;
        }
        if (status != RP_OK || rp_failed()) fail_msg("%s: %s", works[k].name, rp_error_message());
        if (works[k].of(true) == RP_OK) fail_msg("%s does not fail", works[k].name);
        assert_int_not_equal(rp_error_take(), RP_OK);

        (void)rp_matmul(rp_ones(RP_DIMS(2, 3)), rp_ones(RP_DIMS(2, 3)));
        snprintf(older, sizeof older, "%s", rp_error_message());
        for (int broken = 0; broken < 2; broken++) {
            status = works[k].of(broken);
            snprintf(now, sizeof now, "%s", rp_error_message());
            if (strcmp(older, now) != 0) fail_msg("%s: the older error is now '%s'", works[k].name, now);
            if ((status != RP_OK) != broken)
                fail_msg("%s, %s, after an older error: status %d", works[k].name, broken ? "broken" : "sound",
                         (int)status);
        }
        assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    }
}

/* What was tried and taken back is no failure, whether or not an error was there before. */
static void what_is_taken_back_is_no_failure(void **state) {
    (void)state;
    for (int held = 0; held < 2; held++) {
        if (held) (void)rp__fail(RP_ERROR_IO, "older");
        const uint64_t before = rp__error_count();
        rp__error_state kept;
        rp__error_save(&kept);
        (void)rp__fail(RP_ERROR_INDEX, "tried");
        (void)rp_error_take();
        rp__error_restore(&kept);
        assert_int_equal(rp__status_since(before), RP_OK);
        rp__error_save(&kept);
        (void)rp__fail(RP_ERROR_INDEX, "failed");
        rp__error_restore(&kept);
        assert_int_equal(rp__status_since(before), held ? RP_ERROR_IO : RP_ERROR_INDEX);
        (void)rp_error_take();
    }
}

/* A tensor that an older failure left behind is one at each use. */
static void the_error_tensor_fails_again(void **state) {
    (void)state;
    rp_tensor *bad = doubled(five(), true);
    const uint64_t before = rp__error_count();
    (void)rp_neg(bad);
    assert_int_equal(rp__status_since(before), RP_ERROR_SHAPE);
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(calls_do_what_they_do_without, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(what_is_taken_back_is_no_failure, scope_setup, scope_teardown),
        cmocka_unit_test_setup_teardown(the_error_tensor_fails_again, scope_setup, scope_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
