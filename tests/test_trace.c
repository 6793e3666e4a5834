/* Tracing itself: what is recorded, what is put back, random counters of every random op, computing by traces against eager. */
#include "support/trace_help.h"

#include "autograd/tape.h"
#include "core/alloc.h"
#include "trace/ir_run.h"
#include "trace/trace.h"

static void assert_text(const rp_ir *ir, const char *part) {
    rp__text t = {0};
    rp__ir_print(ir, false, &t);
    if (!strstr(t.data, part)) fail_msg("%s\nis not in\n%s", part, t.data);
    rp__text_free(&t);
}

/* ---- every random op takes the counters that its node says */

static void draws(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int *which = ctx;
    (void)n_in;
    (void)n_out;
    switch (*which) {
    case 0: out[0] = rp_rand(RP_DIMS(7)); break;
    case 1: out[0] = rp_rand(RP_DIMS(7), RP_OPTIONS(rp_rand_options, .dtype = RP_F64)); break;
    case 2: out[0] = rp_rand(RP_DIMS(7), RP_OPTIONS(rp_rand_options, .dtype = RP_F16)); break;
    case 3: out[0] = rp_randn(RP_DIMS(7)); break;
    case 4: out[0] = rp_randn(RP_DIMS(7), RP_OPTIONS(rp_randn_options, .dtype = RP_F64)); break;
    case 5: out[0] = rp_randn(RP_DIMS(7), RP_OPTIONS(rp_randn_options, .dtype = RP_BF16)); break;
    case 6: out[0] = rp_randint(0, 10, RP_DIMS(7)); break;
    case 7: out[0] = rp_randint(0, 10, RP_DIMS(7), RP_OPTIONS(rp_randint_options, .dtype = RP_I32)); break;
    case 8: out[0] = rp_randint(0, INT64_C(1) << 40, RP_DIMS(7)); break;
    case 9: out[0] = rp_dropout(in[0], 0.5, true); break;
    case 10: out[0] = rp_dropout(rp_to_dtype(in[0], RP_F64), 0.5, true); break;
    case 11: out[0] = rp_rand(RP_DIMS(0)); break;
    case 12: out[0] = rp_multinomial(rp_abs(in[0]), 9, true); break;
    default: out[0] = rp_multinomial(rp_abs(in[0]), 3, false); break;
    }
}

enum { DRAWS = 14 };

static void test_counters(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_generator *g = rp_default_generator(rp_cpu());
    for (int which = 0; which < DRAWS; which++) {
        rp_tensor *x = filled(1, 1, 7), *want, *got;
        uint64_t seed, before, after;
        rp_manual_seed(11);
        rp_generator_get(g, &seed, &before);
        draws(&which, &x, 1, &want, 1);
        assert_ok();
        rp_generator_get(g, &seed, &after);
        rp_ir *ir = rp_trace((rp_fn){draws, &which, 0, "draws"}, &x, 1, 1);
        assert_ok();
        uint64_t counted = 0, untouched;
        for (size_t i = 0; i < ir->n_nodes; i++) counted += (uint64_t)ir->nodes[i].random_count;
        if (counted != after - before)
            fail_msg("draw %d: the node says %llu counters, the op takes %llu", which, (unsigned long long)counted,
                     (unsigned long long)(after - before));
        rp_generator_get(g, &seed, &untouched); /* tracing draws nothing */
        assert_int_equal(untouched, after);
        rp_manual_seed(11);
        assert_int_equal(rp_ir_run(ir, &x, 1, &got, 1), RP_OK);
        assert_same(got, want);
        rp_ir_release(ir);
    }
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- an abstract trace leaves no mark */

struct outer {
    rp_tensor *w, *buffer;
};

static void marks(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct outer *o = ctx;
    (void)n_in;
    (void)n_out;
    rp_add_(o->buffer, in[0]);
    rp_tensor *loss = rp_sum(rp_mul(rp_mul(in[0], o->w), o->w));
    rp_backward(loss, NULL, NULL);
    rp_fill_(rp_select(in[0], 0, 0), rp_f64(7));
    out[0] = rp_detach(loss);
}

static void test_no_marks(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    struct outer o = {filled(0.5, 1, 4), filled(0, 1, 4)};
    rp_set_requires_grad(o.w, true);
    rp_tensor *x = filled(0.3, 1, 4);
    for (int with_grad = 0; with_grad < 2; with_grad++) {
        rp_tensor *grad = with_grad ? filled(2, 1, 4) : NULL;
        assert_int_equal(rp_set_grad(o.w, grad), RP_OK);
        rp_ir *ir = rp_trace((rp_fn){marks, &o, 0, "marks"}, &x, 1, 1);
        assert_ok();
        assert_int_equal(rp_ir_check(ir), RP_OK);
        assert_text(ir, "add_(");
        assert_text(ir, "fill_(");
        assert_ptr_equal(rp_grad_of(o.w), grad);
        assert_int_equal(rp_version(o.buffer), 0);
        assert_int_equal(rp_version(x), 0);
        assert_same(x, filled(0.3, 1, 4));
        assert_null(rp__trace_current());
        rp_ir_release(ir);
    }
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- a function trace computes what eager execution computes, in every handle */

static rp_tensor *held[2];
static void views_and_writes(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *base = rp_mul(in[0], in[0]); /* (3, 4) */
    rp_tensor *row = rp_select(base, 0, 1), *columns = rp_permute(base, RP_DIMS(1, 0));
    rp_add_(row, rp_exp(row)); /* seen through base and columns */
    rp_mul_scalar_(rp_slice(columns, 0, 1, 3, 1), rp_f64(3));
    rp_fill_(rp_select(in[0], 1, 2), rp_f64(-1)); /* an argument is written */
    held[0] = rp_retain(row);                     /* outlives the scope: computed all the same */
    held[1] = rp_retain(rp_tanh(rp_select(columns, 0, 2)));
    out[0] = base;
    out[1] = rp_sum(columns, RP_DIMS(1), true);
    out[2] = columns;
}

static void test_function_trace(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = filled(0.3, 2, 3, 4), *y = filled(0.3, 2, 3, 4), *got[3], *want[3], *want_held[2];
    views_and_writes(NULL, &y, 1, want, 3);
    memcpy(want_held, held, sizeof held);
    rp__trace_result r;
    rp__trace_request q = {
        .mode = RP__TRACE_FUNCTION, .fn = {views_and_writes, NULL, 0, "writes"}, .in = &x, .n_in = 1, .n_out = 3};
    assert_int_equal(rp__trace_run(&q, got, &r), RP_OK);
    assert_false(r.broken);
    assert_int_equal(rp_ir_check(r.ir), RP_OK);
    for (int k = 0; k < 3; k++) assert_same(got[k], want[k]);
    for (int k = 0; k < 2; k++) assert_same(held[k], want_held[k]);
    assert_same(x, y);
    assert_int_equal(rp_version(x), rp_version(y));
    assert_int_equal(rp_version(got[0]), rp_version(want[0]));
    assert_ptr_equal(rp_data(got[0]), rp_data(got[2])); /* views stay views */
    /* the graph does the same once more */
    rp_tensor *z = filled(0.3, 2, 3, 4), *again[3];
    assert_int_equal(rp_ir_run(r.ir, &z, 1, again, 3), RP_OK);
    for (int k = 0; k < 3; k++) assert_same(again[k], want[k]);
    assert_same(z, y);
    rp__trace_result_free(&r);
    for (int k = 0; k < 2; k++) {
        rp_release(held[k]);
        rp_release(want_held[k]);
    }
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- what nobody reads any more goes while a trace computes */

enum { LINKS = 16, LINK_BYTES = 1 << 20 };

static void chain(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = in[0];
    for (int k = 0; k < LINKS; k++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *y = rp_transpose(rp_sin(rp_transpose(x, 0, 1)), 0, 1);
        x = rp_add_scalar(y, rp_f64(k));
        rp_scope_end(scope, &x, 1);
    }
    out[0] = x;
}

static void test_memory_of_a_chain(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_ones(RP_DIMS(512, LINK_BYTES / 512 / 4)), *got, *want;
    chain(NULL, &x, 1, &want, 1);
    rp__trace_result r;
    rp__trace_request q = {
        .mode = RP__TRACE_FUNCTION, .fn = {chain, NULL, 0, "chain"}, .in = &x, .n_in = 1, .n_out = 1};
    rp_memory_stats before = {.struct_size = sizeof before}, after = before;
    rp_memory_stats_get(rp_cpu(), &before);
    rp_memory_stats_reset_peak(rp_cpu());
    assert_int_equal(rp__trace_run(&q, &got, &r), RP_OK);
    rp_memory_stats_get(rp_cpu(), &after);
    /* The x of all turns are held by the function's scope; of the y there is one at a time. */
    assert_true(after.allocated_peak - before.allocated < (LINKS + 2) * LINK_BYTES);
    assert_same(got, want);
    rp__trace_result_free(&r);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- abstract traces refuse values */

static void reads(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    rp_tensor *of = ctx ? ctx : rp_exp(in[0]);
    out[0] = rp_mul_scalar(in[0], rp_item(rp_sum(of)));
}

static void sized(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_nonzero(in[0]);
}

static void reads_outside(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_item(ctx)); /* real data: it would be baked in */
}

static void test_refusals(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = filled(0.3, 1, 4), *one = filled(2, 1, 1);
    rp_fn fns[] = {{reads, NULL, 0, "reads"},
                   {reads, one, 0, "reads"},
                   {sized, NULL, 0, "sized"},
                   {reads_outside, one, 0, "outside"}};
    for (size_t k = 0; k < sizeof fns / sizeof *fns; k++) {
        rp_ir *ir = rp_trace(fns[k], &x, 1, 1);
        assert_int_equal(rp_error_take(), RP_ERROR_GRAPH_BREAK);
        assert_int_equal(rp_ir_run(ir, &x, 1, (rp_tensor *[1]){NULL}, 1), RP_ERROR_INVALID_ARGUMENT);
        rp_error_take();
        rp_ir_release(ir);
    }
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- a recomputation draws the same numbers */

static void test_positions(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    static const char text[] = "graph \"p\" () {\n"
                               "  %0: f32[8] = rand() {size = [8], dtype = f32, generator = none} random(0, 2)\n"
                               "  %1: f32[8] = rand() {size = [8], dtype = f32, generator = none} random(2, 2)\n"
                               "  %2: f32[8] = rand() {size = [8], dtype = f32, generator = none} random(0, 2)\n"
                               "  %3: f32[8] = rand() {size = [8], dtype = f32, generator = none} random(4, 2)\n"
                               "  return %0, %1, %2, %3\n}\n";
    rp_ir *ir = rp_ir_parse(text, strlen(text));
    rp_tensor *out[4], *want[3];
    uint64_t seed, offset;
    assert_ok();
    rp_manual_seed(5);
    assert_int_equal(rp_ir_run(ir, NULL, 0, out, 4), RP_OK);
    rp_generator_get(rp_default_generator(rp_cpu()), &seed, &offset);
    assert_int_equal(offset, 6);
    rp_manual_seed(5);
    for (int k = 0; k < 3; k++) want[k] = rp_rand(RP_DIMS(8));
    assert_same(out[0], want[0]);
    assert_same(out[1], want[1]);
    assert_same(out[2], want[0]);
    assert_same(out[3], want[2]);
    rp_ir_release(ir);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- words of objects that are no tensors: what stays as it was found is no effect of a call */

static uint64_t words[3] = {5, 6, 7};
static void sets_words(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    assert_int_equal(rp__trace_word_set(&words[0], 50), RP_OK);
    assert_int_equal(rp__trace_word_set(&words[1], 60), RP_OK);
    assert_int_equal(rp__trace_word_set(&words[2], 70), RP_OK);
    assert_int_equal(rp__trace_word_set(&words[0], 5), RP_OK);
    assert_int_equal(rp__trace_word_set(&words[2], 7), RP_OK);
    out[0] = rp_neg(in[0]);
}

static void test_words(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = filled(1, 1, 7), *y;
    static const rp__trace_mode modes[] = {RP__TRACE_FUNCTION, RP__TRACE_ABSTRACT};
    for (int k = 0; k < 2; k++) {
        const rp__trace_request request = {
            .mode = modes[k], .fn = {sets_words, NULL, 0, "words"}, .in = &x, .n_in = 1, .n_out = 1};
        rp__trace_result result;
        assert_int_equal(rp__trace_run(&request, &y, &result), RP_OK);
        assert_int_equal(result.n_words, 1);
        assert_ptr_equal(result.words[0].address, &words[1]);
        assert_int_equal(result.words[0].entry, 6);
        assert_int_equal(result.words[0].exit, 60);
        assert_int_equal(result.n_bytes, 3); /* all of them are guarded */
        assert_int_equal(words[1], modes[k] == RP__TRACE_ABSTRACT ? 6 : 60);
        words[1] = 6;
        rp__trace_result_free(&result);
    }
    rp_ir_release(rp_trace((rp_fn){sets_words, NULL, 0, "sets_words"}, &x, 1, 1)); /* an export has no such effects */
    assert_int_equal(rp_error_status(), RP_ERROR_GRAPH_BREAK);
    assert_non_null(strstr(rp_error_message(), "`sets_words` changes an object that is no tensor"));
    rp_error_take();
    assert_int_equal(words[1], 6);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_counters, take_error),
        cmocka_unit_test_teardown(test_no_marks, take_error),
        cmocka_unit_test_teardown(test_function_trace, take_error),
        cmocka_unit_test_teardown(test_memory_of_a_chain, take_error),
        cmocka_unit_test_teardown(test_refusals, take_error),
        cmocka_unit_test_teardown(test_positions, take_error),
        cmocka_unit_test_teardown(test_words, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
