/* Calls of a compiled function after its first, with other sizes, other gradients and other memory: each is compared, bit for
   bit, with the function run eagerly, on every backend that compiles and on each device. */
/* ctest: labels=compile,cuda timeout=300 cost=20 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include <reprise.h>

#include "support/each_device.h"
#include "support/slow.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

static const char *const backends[] = {"aot_eager", "cudagraphs", "fused"};
enum { BACKENDS = 3, OUT = 2 };

static rp_tensor *total(rp_tensor *t) { return rp_sum(t); }

/* rows x 4 numbers, a leaf */
static rp_tensor *leaf(int64_t rows, rp_dtype dtype) {
    rp_tensor *t =
        rp_reshape(rp_arange(rp_i64(0), rp_i64(4 * rows), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)),
                   RP_DIMS(rows, 4));
    t = rp_detach(rp_to_dtype(rp_sin(rp_add_scalar(t, rp_f64(0.5))), dtype));
    OK(rp_set_requires_grad(t, true));
    return t;
}

typedef struct seen {
    rp_tensor *out[OUT], *grad[2];
    uint64_t drawn;
} seen;

/* One call with two leaves of `rows` rows and what a backward from the results of `mask` gives. */
static void call(rp_compiled *f, int64_t rows, rp_dtype second, int mask, seen *r) {
    rp_tensor *in[] = {leaf(rows, RP_F32), leaf(rows, second)}, *roots[OUT], *seeds[OUT];
    size_t n = 0;
    memset(r, 0, sizeof *r);
    OK(rp_manual_seed(7));
    OK(rp_call(f, in, 2, r->out, OUT));
    for (int k = 0; k < OUT; k++) {
        if (!(mask >> k & 1) || !rp_requires_grad(r->out[k])) continue;
        seeds[n] = rp_cos(rp_detach(r->out[k]));
        roots[n++] = r->out[k];
    }
    if (n > 0) OK(rp_grad(roots, n, in, 2, seeds, RP_OPTIONS(rp_backward_options, .allow_unused = true), r->grad));
    uint64_t seed;
    OK(rp_generator_get(rp_default_generator(device), &seed, &r->drawn));
}

static void check(rp_body *body, const char *name, rp_dtype second) {
    static const struct {
        int64_t rows;
        int mask;
    } calls[] = {{3, 3}, {3, 3}, {5, 3}, {6, 1}, {6, 1}, {7, 1}, {7, 2}, {7, 2}, {1, 3}, {3, 3}};
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_fn fn = {body, NULL, 0, name};
        rp_compiled *plain = rp_plain(fn), *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b]));
        for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
            seen want, got;
            call(plain, calls[k].rows, second, calls[k].mask, &want);
            call(f, calls[k].rows, second, calls[k].mask, &got);
            for (int i = 0; i < OUT; i++) {
                same(got.out[i], want.out[i]);
                assert_int_equal(rp_requires_grad(got.out[i]), rp_requires_grad(want.out[i]));
                assert_int_equal(!got.grad[i], !want.grad[i]);
                if (want.grad[i]) same(got.grad[i], want.grad[i]);
            }
            assert_int_equal(got.drawn, want.drawn);
        }
        rp_compiled_release(f);
        rp_compiled_release(plain);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

BODY(
    drawn) { /* counters follow from sizes that are symbols; a gradient for one result is another plan, for these sizes */
    UNUSED;
    out[0] = rp_dropout(rp_mul(in[0], in[1]), 0.5, true);
    out[1] = rp_sin(rp_dropout(in[1], 0.25, true));
}
BODY(cut_and_written) { /* the detached tensor gets a history, what it was detached from keeps its own */
    UNUSED;
    rp_tensor *kept = rp_cos(in[0]);
    out[0] = rp_sub_(rp_detach(kept), rp_erf(in[1]), RP_OPTIONS(rp_sub_options, .alpha = rp_i64(2)));
    out[1] = rp_mul_scalar(kept, rp_f64(3));
}
BODY(cut_and_filled) { /* other values, the same history */
    UNUSED;
    out[0] = rp_add_scalar(rp_mul(in[0], in[1]), rp_f64(1));
    out[1] = rp_fill_(rp_select(rp_detach(out[0]), 0, 0), rp_f64(0.25));
}
BODY(late) { /* a write through a view of a view gives a history to what had none when the views were made */
    UNUSED;
    rp_tensor *base = rp_mul_scalar(rp_detach(in[0]), rp_f64(2)), *view = rp_transpose(base, 0, 1);
    (void)rp_fill_(view, rp_f64(0.5));
    (void)rp_copy_(view, rp_transpose(in[1], 0, 1));
    out[0] = rp_neg(view);
    out[1] = base;
}
BODY(between_types) { /* computed in the wider type, then converted */
    UNUSED;
    rp_tensor *narrow = rp_clone(in[1]);
    out[0] = rp_mul_(narrow, in[0]);
    out[1] = rp_add_(rp_clone(in[1]), rp_select(in[0], 0, 0), RP_OPTIONS(rp_add_options, .alpha = rp_f64(1.0 / 3)));
}
BODY(computed_places) { /* an index that a thread behind the last element would compute is out of range, and nobody's */
    UNUSED;
    rp_tensor *even = rp_arange(rp_i64(0), rp_i64(rp_size(in[0], 0)), rp_i64(2));
    rp_tensor *back =
        rp_sub(rp_full(RP_DIMS(1), rp_i64(rp_size(in[0], 0) - 1), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), even);
    out[0] = rp_embedding(in[0], even);
    out[1] = rp_tanh(rp_embedding(in[1], back));
}

BODY(half) {
    UNUSED;
    out[0] = rp_tanh(in[0]);
}
BODY(turn) {
    UNUSED;
    out[0] = rp_sin(in[0]);
}
BODY(either) {
    UNUSED;
    rp_cond(rp_gt_scalar(total(in[0]), rp_f64(0)), (rp_fn){half, NULL, 0, "half"}, (rp_fn){turn, NULL, 0, "turn"}, in,
            1, out, 1);
}
BODY(small) {
    UNUSED;
    out[0] = rp_lt_scalar(total(rp_abs(in[0])), rp_f64(3));
}
BODY(branch_in_loop) { /* the derivative counts down in the memory from which a row that idles reads */
    UNUSED;
    rp_tensor *x = total(in[0]);
    rp_while((rp_fn){small, NULL, 0, "small"}, (rp_fn){either, NULL, 0, "either"}, &x, 1, 3, out);
    out[1] = rp_sin(in[1]);
}

/* A tensor that outlived rp_trace, or a segment that was given up, has no value: whoever is given it says so. */
static rp_tensor *kept;
BODY(keeping) {
    UNUSED;
    out[0] = rp_sin(in[0]);
    kept = rp_retain(out[0]);
}
BODY(relu) {
    UNUSED;
    out[0] = rp_relu(in[0]);
}
static rp_tensor *outside;
BODY(failing) { /* the first op may fail; two reads follow */
    UNUSED;
    (void)rp_add(in[0], outside);
    rp_tensor *y = rp_sin(in[0]);
    out[1] = rp_nonzero(outside);
    out[0] = rp_nonzero(y);
}

static void test_no_value(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = leaf(3, RP_F32), *y, *both[2];
    rp_ir_release(rp_trace((rp_fn){keeping, NULL, 0, "keeping"}, &x, 1, 1));
    rp_compiled *f[] = {rp_plain((rp_fn){relu, NULL, 0, "relu"}), rp_compile((rp_fn){relu, NULL, 0, "relu"}, NULL)};
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < 2; k++) {
            FAILS(RP_ERROR_STATE, "a trace that was given up was used (made by sin at ",
                  rp_call(f[k], &kept, 1, &y, 1));
            assert_true(rp_is_error(y));
            OK(rp_call(f[k], &x, 1, &y, 1));
        }
    }
    for (int k = 0; k < 2; k++) rp_compiled_release(f[k]);
    rp_release(kept);

    outside = rp_ones(RP_DIMS(2, 4));
    rp_compiled *lazy = rp_compile((rp_fn){failing, NULL, 0, "failing"}, NULL);
    for (int round = 0; round < 4; round++) {
        x = rp_detach(leaf(round ? 5 : 1, RP_F32));
        if (round)
            FAILS(RP_ERROR_SHAPE, "do not broadcast", rp_call(lazy, &x, 1, both, 2));
        else
            OK(rp_call(lazy, &x, 1, both, 2));
    }
    rp_compiled_release(lazy);
    OK(rp_scope_end(scope, NULL, 0));
}

/* Sums over rows beside what reduces along them, of operands whose elements lie apart in several ways. */
BODY(norm_gradients) {
    const int *dims = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *y = dims[1] ? rp_layer_norm(in[0], RP_DIMS(dims[0], dims[1]), in[1], in[2])
                           : rp_layer_norm(in[0], RP_DIMS(dims[0]), in[1], in[2]);
    (void)rp_grad(&y, 1, in, 3, &in[3], NULL, out);
}

static void test_apart_beside_sums(void **state) {
    (void)state;
    static const int dims[][2] = {{64, 0}, {16, 16}, {33, 0}, {5, 24}}; /* of a row; 0: one dim */
    static const int64_t rows[] = {300, 512, 1024, 4100};
    const bool cuda = rp_default_device().type == RP_DEVICE_CUDA;
    for (unsigned k = 0; k < 16; k++) {
        rp_scope scope = rp_scope_begin();
        const int *d = dims[k / 4];
        const int64_t n = rows[k % 4], a = d[0], b = d[1] ? d[1] : 1;
        rp_compiled *f = rp_compile((rp_fn){norm_gradients, (void *)(uintptr_t)d, sizeof *d * 2, "norm_gradients"},
                                    RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
        rp_tensor *in[4], *want[3], *got[3];
        for (unsigned how = 0; how < 4; how++) { /* bit 0: of the input, bit 1: of the gradient that comes in */
            if (cuda ? !test_cuda_takes(k + how, 3) : SLOW_BUILD && (k + how) % 3)
                continue; /* one or two ways of each */
            for (unsigned i = 0; i < 4; i++) {
                const bool small = i == 1 || i == 2, apart = (i == 0 && how & 1) || (i == 3 && how & 2);
                rp_tensor *t = small   ? rp_randn(RP_DIMS(a, b))
                               : apart ? rp_permute(rp_randn(RP_DIMS(b, a, n)), RP_DIMS(2, 1, 0))
                                       : rp_randn(RP_DIMS(n, a, b));
                if (!d[1]) t = rp_select(t, -1, 0);
                in[i] = rp_detach(t);
                OK(rp_set_requires_grad(in[i], i < 3));
            }
            norm_gradients((void *)(uintptr_t)d, in, 4, want, 3);
            for (int turn = 0; turn < 2; turn++) {
                OK(rp_call(f, in, 4, got, 3));
                for (int i = 0; i < 3; i++) same(want[i], got[i]);
            }
        }
        rp_compiled_release(f);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* A place out of bounds is told by the name of the op that was called, however much of it there is in the graph. */
BODY(of_classes) {
    UNUSED;
    out[0] = rp_nll_loss(in[0], in[1]);
}
BODY(of_rows) {
    UNUSED;
    out[0] = rp_index_add(in[0], 0, in[1], in[0]);
}
BODY(of_places) {
    UNUSED;
    out[0] = rp_gather(in[0], 1, rp_unsqueeze(in[1], 1));
}

static void test_bad_places(void **state) {
    (void)state;
    static const struct {
        rp_body *body;
        const char *text;
    } cases[] = {{of_classes, "nll_loss: class_value: index 9 is out of bounds for a dimension of size 4 at "},
                 {of_rows, "index_add: scatter_add: index 9 is out of bounds for a dimension of size 3 at "},
                 {of_places, "gather: index 9 is out of bounds for a dimension of size 4 at "}};
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[] = {rp_detach(leaf(3, RP_F32)), rp_from_data((int64_t[]){0, 9, 1}, RP_DIMS(3), RP_I64)}, *out;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int b = -1; b < BACKENDS; b++) { /* -1: eagerly */
            rp_compiled *f = b < 0 ? NULL
                                   : rp_compile((rp_fn){cases[c].body, NULL, 0, "bad_places"},
                                                RP_OPTIONS(rp_compile_options, .backend = backends[b]));
            for (int turn = 0; turn < 3; turn++) {
                if (f)
                    (void)rp_call(f, in, 2, &out, 1);
                else
                    cases[c].body(NULL, in, 2, &out, 1);
                (void)rp_synchronize(device);
                assert_int_equal(rp_error_status(), RP_ERROR_INDEX);
                if (strncmp(rp_error_message(), cases[c].text, strlen(cases[c].text)) != 0 ||
                    !strstr(rp_error_message(), "test_compile_calls.c:"))
                    fail_msg("case %zu, backend %d: %s", c, b, rp_error_message());
                (void)rp_error_take();
            }
            if (f) rp_compiled_release(f);
        }
    }
    OK(rp_scope_end(scope, NULL, 0));
}

#define CASE(name, second)                                                                                             \
    static void test_##name(void **state) {                                                                            \
        (void)state;                                                                                                   \
        check(name, #name, second);                                                                                    \
    }
CASE(drawn, RP_F32)
CASE(cut_and_written, RP_F32)
CASE(cut_and_filled, RP_F32)
CASE(late, RP_F32)
CASE(between_types, RP_F16)
CASE(computed_places, RP_F32)
CASE(branch_in_loop, RP_F32)

/* Bytes that a function gives to be compared within a block are compared: by the function that has the block. */
static void scales(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    assert_int_equal(rp_guard_bytes(ctx, sizeof(double)), RP_OK);
    out[0] = rp_mul_scalar(in[0], rp_f64(*(const double *)ctx));
}
static void scales_in_blocks(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    double *factors = ctx;
    rp_fn first = {scales, &factors[0], 0, "scales"}, second = {scales, &factors[1], 0, "scales"};
    (void)n_in, (void)n_out;
    rp_checkpoint(first, in, 1, out, 1);
    rp_cond(rp_gt_scalar(rp_sum(in[0]), rp_i64(0)), second, first, out, 1, out, 1);
}
static void test_bytes_within_blocks(void **state) {
    (void)state;
    double factors[2] = {2, 3};
    rp_compiled *f =
        rp_compile((rp_fn){scales_in_blocks, factors, 0, "blocks"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int call = 0; call < 9; call++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_ones(RP_DIMS(3)), *y;
        if (call % 3 == 0) factors[call / 3 % 2] += 1;
        assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_true(rp_item_f64(rp_sum(rp_detach(y))) == 3 * factors[0] * factors[1]);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
    rp_compiled_release(f);
}

/* Switches of the process within a function: what is recorded behind them goes by them, and they are left as the function leaves them. */
static void switches(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rp_matmul(in[0], in[0]);
    if (ctx)
        (void)rp_set_deterministic(true);
    else
        assert_int_equal(rp_set_float32_matmul_precision("high"), RP_OK);
    out[0] = rp_matmul(out[0], in[0]);
}
static void test_switches_inside(void **state) {
    (void)state;
    static const char *const names[] = {"aot_eager", "cudagraphs", "fused"};
    for (int b = 0; b < 6; b++) {
        int which = 0;
        rp_compiled *f = rp_compile((rp_fn){switches, b < 3 ? NULL : &which, 0, "switches"},
                                    RP_OPTIONS(rp_compile_options, .backend = names[b % 3]));
        for (int call = 0; call < 5; call++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *x = rp_full(RP_DIMS(2, 2), rp_f64(call)), *y;
            assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
            assert_true(rp_item_f64(rp_sum(y)) == 16.0 * call * call * call);
            assert_string_equal(rp_float32_matmul_precision(), b < 3 ? "high" : "highest");
            assert_true(rp_set_deterministic(false) == (b >= 3));
            assert_int_equal(rp_set_float32_matmul_precision("highest"), RP_OK);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        }
        bool told = false;
        for (size_t i = 0; i < rp_explain_count(f); i++) {
            rp_explain_entry e;
            assert_int_equal(rp_explain_get(f, i, &e), RP_OK);
            told = told || (strcmp(e.kind, "break") == 0 && strcmp(e.reason, "setting-switched") == 0);
        }
        assert_true(told);
        rp_compiled_release(f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_drawn, begin, end),
        cmocka_unit_test_setup_teardown(test_cut_and_written, begin, end),
        cmocka_unit_test_setup_teardown(test_cut_and_filled, begin, end),
        cmocka_unit_test_setup_teardown(test_late, begin, end),
        cmocka_unit_test_setup_teardown(test_between_types, begin, end),
        cmocka_unit_test_setup_teardown(test_computed_places, begin, end),
        cmocka_unit_test_setup_teardown(test_branch_in_loop, begin, end),
        cmocka_unit_test_setup_teardown(test_no_value, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_places, begin, end),
        cmocka_unit_test_setup_teardown(test_apart_beside_sums, begin, end),
        cmocka_unit_test_setup_teardown(test_bytes_within_blocks, begin, end),
        cmocka_unit_test_setup_teardown(test_switches_inside, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
