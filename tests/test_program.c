/* Programs: a traced function, functionalised, simplified, fused, planned and run, against the same function run eagerly.
   Bits are compared, never tolerances. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "compile/pipeline.h"
#include "core/alloc.h"
#include "device/device.h"
#include "device/error_record.h"
#include "kernel/loop.h"
#include "support/passes.h"

static rp_tensor *filled(const int64_t *size, size_t ndim, int seed) {
    int64_t n = 1;
    for (size_t d = 0; d < ndim; d++) n *= size[d];
    float *data = malloc((size_t)(n ? n : 1) * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = (float)((i * 7919 + seed * 104729) % 2003 - 1001) / 257.0f;
    rp_tensor *t = rp_from_data(data, size, ndim, RP_F32);
    free(data);
    return t;
}
#define FILLED(seed, ...) filled(RP_DIMS(__VA_ARGS__), seed)

static void assert_same(rp_tensor *a, rp_tensor *b) {
    assert_false(rp_failed());
    assert_int_equal(rp_ndim(a), rp_ndim(b));
    assert_int_equal(rp_dtype_of(a), rp_dtype_of(b));
    for (size_t d = 0; d < rp_ndim(a); d++) assert_int_equal(rp_size(a, (int64_t)d), rp_size(b, (int64_t)d));
    size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    assert_int_equal(rp_to_host(a, x, bytes), RP_OK);
    assert_int_equal(rp_to_host(b, y, bytes), RP_OK);
    for (size_t i = 0; i < bytes; i++) {
        if (x[i] != y[i]) fail_msg("byte %zu of %zu differs", i, bytes);
    }
    free(x);
    free(y);
}

static void show_error(void) {
    if (rp_failed()) fail_msg("%s", rp_error_message());
}

/* Runs fn eagerly and as a program, on the same arguments, twice with other arguments of the same sizes; returns launches. */
static size_t compare(rp_body *body, void *ctx, rp_tensor *const *in, rp_tensor *const *in2, size_t n_in, size_t n_out,
                      size_t max_kernels) {
    rp_tensor *expected[8] = {0}, *got[8] = {0};
    rp_fn fn = {body, ctx, 0, "test"};
    rp_ir *ir = rp_trace(fn, in, n_in, n_out), *functional = NULL, *simple = NULL;
    show_error();
    rp__functionalise(ir, &functional);
    show_error();
    rp__simplify(functional, true, &simple);
    show_error();
    rp__executable *p = NULL;
    (void)rp__pipeline_program(simple, in, n_in, NULL, &p);
    show_error();
    rp__executable_facts facts;
    rp__executable_facts_of(p, &facts);
    if (max_kernels && facts.n_launches > max_kernels) {
        rp__text t = {0};
        rp__ir_print(simple, false, &t);
        for (size_t k = 0; k < facts.n_kernels; k++) rp__text_add(&t, "kernel %s\n", facts.kernels[k].ops);
        for (size_t k = 0; k < facts.n_unfused; k++)
            rp__text_add(&t, "unfused %s %s %s\n", facts.unfused[k].producer, facts.unfused[k].consumer,
                         facts.unfused[k].reason);
        print_message("%s", t.data);
        rp__text_free(&t);
        fail_msg("%zu launches instead of %zu", facts.n_launches, max_kernels);
    }
    for (int round = 0; round < 3; round++) {
        rp_tensor *const *use = round == 1 ? in2 : in;
        rp_scope scope = rp_scope_begin();
        body(ctx, use, n_in, expected, n_out);
        show_error();
        (void)rp__executable_run(p, use, n_in, got, n_out, NULL, 0, NULL);
        show_error();
        for (size_t k = 0; k < n_out; k++) assert_same(expected[k], got[k]);
        rp_scope_end(scope, NULL, 0);
    }
    rp__executable_free(p);
    rp_ir_release(simple);
    rp_ir_release(functional);
    rp_ir_release(ir);
    return facts.n_launches;
}

static void chain(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_tanh(rp_mul(rp_add(in[0], in[1]), rp_sin(in[0])));
}
/* What an earlier call found in data is told to whoever waits for that; on a CPU nobody reads without. */
static void twice(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(in[0], in[0]);
}
static void test_errors_of_others(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = FILLED(1, 5, 7), *out = NULL;
    rp_compiled *f = rp_compile((rp_fn){twice, NULL, 0, "twice"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    assert_int_equal(rp_call(f, &x, 1, &out, 1), RP_OK);
    rp__error_record_put(rp__cpu_device.errors, rp__error_tag("gather", "elsewhere"), 7, 3);
    assert_int_equal(rp_call(f, &x, 1, &out, 1), RP_OK);
    assert_int_equal(rp__error_record_check(&rp__cpu_device), RP_ERROR_INDEX);
    assert_int_equal(rp_error_take(), RP_ERROR_INDEX);
    rp_compiled_release(f);
    (void)rp_scope_end(scope, NULL, 0);
}

static void test_chain(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 33, 17), FILLED(2, 33, 17)}, *b[] = {FILLED(3, 33, 17), FILLED(4, 33, 17)};
    compare(chain, NULL, a, b, 2, 1, 1);
}

static void broadcast(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *y = rp_mul(in[0], in[1]); /* (8, 5, 7) * (7) */
    out[0] = rp_relu(rp_add(y, in[2]));  /* + (5, 1) */
    out[1] = rp_permute(out[0], RP_DIMS(2, 0, 1));
}
static void test_broadcast(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 8, 5, 7), FILLED(2, 7), FILLED(3, 5, 1)};
    compare(broadcast, NULL, a, a, 3, 2, 1);
}

/* Numbers that are alike are one parameter of the kernel, in one dtype; a size that has the same value is another one. */
static void alike(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_mul_scalar(in[0], rp_f64(0.3)), *y = rp_mul_scalar(in[1], rp_f64(0.3));
    rp_tensor *z = rp_sin(rp_add_scalar(rp_sub(x, y), rp_f64(7)));
    out[0] = rp_sub_scalar(rp_mul_scalar(rp_mul(z, rp_mean(z, RP_DIMS(-1), true)), rp_f64(0.3)), rp_f64(-0.25));
}
static void test_alike(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 5, 7), FILLED(2, 5, 7)};
    compare(alike, NULL, a, a, 2, 1, 1);
    rp_ir *ir = rp_trace((rp_fn){alike, NULL, 0, "alike"}, a, 2, 1);
    rp__executable *p = NULL;
    (void)rp__pipeline_program(ir, a, 2, NULL, &p);
    show_error();
    rp__executable_facts facts;
    rp__executable_facts_of(p, &facts);
    assert_int_equal(facts.n_kernels, 1);
    assert_int_equal(facts.kernels[0].dags[0]->n_scalars, 4); /* 0.3, 7 twice, -0.25 */
    rp__executable_free(p);
    rp_ir_release(ir);
}

static void rows(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *h = rp_gelu(in[0]);
    h = rp_layer_norm(h, RP_DIMS(40), in[1], in[2], 1e-5);
    out[0] = rp_softmax(h, -1);
}
static void test_rows(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 6, 40), FILLED(2, 40), FILLED(3, 40)},
              *b[] = {FILLED(4, 6, 40), FILLED(5, 40), FILLED(6, 40)};
    compare(rows, NULL, a, b, 3, 1, 1);
}

/* What a scatter writes into is made where its result lies, if nothing else reads it; values that the program makes are read where they are. */
static rp_tensor *places_of(rp_tensor *t) { return rp_to_dtype(rp_clamp(rp_abs(t), rp_f64(0), rp_f64(5)), RP_I64); }
static void scatter_zeros(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *zeros = rp_zeros(RP_DIMS(6, 20));
    out[0] = rp_neg(rp_scatter_add(zeros, 0, places_of(in[1]), rp_sin(in[0])));
}
static void scatter_twice(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *index = places_of(in[1]), *y = rp_scatter_add(rp_cos(rp_slice(in[0], 0, 0, 6, 1)), 0, index, in[0]);
    out[0] = rp_scatter_reduce(y, 0, index, rp_sin(in[0]), "prod");
}
static void scatter_read_again(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *self = rp_cos(rp_slice(in[0], 0, 0, 6, 1)), *index = places_of(in[1]);
    out[0] = rp_mul(rp_scatter_add(self, 0, index, in[0]), self);
    out[1] = rp_scatter_reduce(in[0], 0, index, in[1], "amax");
}
static void scatter_same(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *zeros = rp_zeros(RP_DIMS(6, 20)), *index = places_of(in[1]);
    out[0] = rp_add(rp_scatter_add(zeros, 0, index, in[0]), rp_scatter_add(zeros, 0, index, in[1]));
}
/* Into a cat, whose parts are made where the result lies: two of its, one of them a cat too; of the second, one part is read again. */
static void scatter_cat(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *a = rp_cos(rp_slice(in[0], 0, 0, 2, 1)), *b = rp_sin(rp_slice(in[1], 0, 0, 3, 1)),
              *c = rp_tanh(rp_slice(in[1], 0, 0, 1, 1));
    rp_tensor *self = rp_cat(RP_TENSORS(rp_cat(RP_TENSORS(a, b), 0), c), 0);
    out[0] = rp_scatter_add(self, 0, places_of(in[1]), in[0]);
}
static void scatter_cat_read_again(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *a = rp_cos(rp_slice(in[0], 0, 0, 2, 1)), *b = rp_sin(rp_slice(in[1], 0, 0, 3, 1)),
              *c = rp_tanh(rp_slice(in[1], 0, 0, 1, 1));
    rp_tensor *self = rp_cat(RP_TENSORS(rp_cat(RP_TENSORS(a, b), 0), c), 0);
    out[0] = rp_scatter_add(self, 0, places_of(in[1]), in[0]);
    out[1] = rp_add(b, rp_slice(out[0], 0, 0, 3, 1));
}
static void scatter_gradient(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_detach(in[0]);
    rp_set_requires_grad(x, true);
    rp_tensor *y = rp_gather(x, 1, places_of(in[1]));
    rp_grad(&y, 1, &x, 1, (rp_tensor *[]){rp_sin(in[1])}, NULL, out);
}
static void test_scatters(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 9, 20), FILLED(2, 9, 20)}, *b[] = {FILLED(3, 9, 20), FILLED(4, 9, 20)};
    compare(scatter_zeros, NULL, a, b, 2, 1, 5);
    compare(scatter_twice, NULL, a, b, 2, 1, 5);
    compare(scatter_read_again, NULL, a, b, 2, 2, 0);
    compare(scatter_same, NULL, a, b, 2, 1, 5); /* both zeros are one kernel */
    compare(scatter_cat, NULL, a, b, 2, 1, 4);
    compare(scatter_cat_read_again, NULL, a, b, 2, 2, 0);
    compare(scatter_gradient, NULL, a, b, 2, 1, 4);
}

/* Places that are computed, read at once, and used up in registers: one kernel each. */
static void gathered(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *places = rp_to_dtype(rp_relu(in[1]), RP_I64); /* (6, 5), 0 to 3 */
    rp_tensor *rows = rp_embedding(in[0], places);           /* (6, 5, 40) */
    out[0] = rp_layer_norm(rp_add(rows, in[2]), RP_DIMS(40), NULL, NULL, 1e-5);
    out[1] = rp_sin(rp_gather(in[0], 1, rp_to_dtype(rp_relu(rp_transpose(in[1], 0, 1)), RP_I64))); /* (5, 6) */
}
static void test_gathered(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 7, 40), FILLED(2, 6, 5), FILLED(3, 40)},
              *b[] = {FILLED(4, 7, 40), FILLED(5, 6, 5), FILLED(6, 40)};
    compare(gathered, NULL, a, b, 3, 2, 2);
    /* a bad place is said once, with the op that read there */
    rp_tensor *far[] = {a[0], rp_mul_scalar(a[1], rp_f64(100)), a[2]}, *out[2] = {0};
    rp_compiled *f = rp_compile((rp_fn){gathered, NULL, 0, "gathered"}, NULL);
    assert_int_equal(rp_call(f, far, 3, out, 2), RP_OK);
    float first;
    (void)rp_to_host(rp_select(rp_select(rp_select(out[0], 0, 0), 0, 0), 0, 0), &first, sizeof first);
    assert_true(rp_failed());
    assert_non_null(strstr(rp_error_message(), "embedding"));
    assert_int_equal(rp_error_take(), RP_ERROR_INDEX);
    rp_compiled_release(f);
}

/* Long formulas of what is read from a table: of a place that stands still along the rows, of rows that are all alike. */
static void still_places(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_tensor *read = NULL, *index = rp_expand(in[1], RP_DIMS(4, 8));
    switch (*(const int *)ctx) {
    case 0: read = rp_gather(in[0], 1, index); break;
    case 1: read = rp_squeeze(rp_embedding(in[0], index), 2); break;
    case 2:
        read = rp_embedding(rp_expand(rp_view(in[0], RP_DIMS(8)), RP_DIMS(3, 8)), rp_view(in[1], RP_DIMS(4)));
        break;
    default: read = rp_gather(in[0], 0, index); break;
    }
    out[0] = rp_sum(rp_mul(rp_special_i0e(read), in[2]), RP_DIMS(1));
}
static void test_still_places(void **state) {
    (void)state;
    static const int64_t index[] = {2, 0, 1, 1}, size[][2] = {{4, 3}, {3, 1}, {1, 8}, {3, 8}};
    for (int way = 0; way < 4; way++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *places = rp_from_data(index, RP_DIMS(4, 1), RP_I64);
        rp_tensor *in[] = {rp_to_dtype(filled(size[way], 2, 1), RP_F64), places, rp_to_dtype(FILLED(2, 4, 8), RP_F64)};
        rp_tensor *in2[] = {rp_to_dtype(filled(size[way], 2, 3), RP_F64), places, rp_to_dtype(FILLED(4, 4, 8), RP_F64)};
        (void)compare(still_places, &way, in, in2, 3, 1, 3);
        (void)rp_scope_end(scope, NULL, 0);
    }
}

/* A constant inside a block is made by each kernel that reads it, as in the body: not stored, no kernel of its own. */
static void test_constant_in_block(void **state) {
    (void)state;
    rp_ir *ir = test_parse("graph \"f\" (%0: b8[], %1: f32[4, 8], %2: f32[8, 8], %3: b8[4, 8]) {\n"
                           "  %4: f32[4, 8] = cond(%0, %1, %2, %3) {\n"
                           "    then(%5: f32[4, 8], %6: f32[8, 8], %7: b8[4, 8]) {\n"
                           "      %8: f32[4, 8] = full() {size = [4, 8], fill_value = 3, dtype = f32}\n"
                           "      %9: f32[4, 8] = where(%7, %5, %8)\n"
                           "      %10: f32[4, 8] = linear(%9, %6, none)\n"
                           "      %11: f32[4, 8] = where(%7, %10, %8)\n"
                           "      return %11\n"
                           "    }\n"
                           "    else(%12: f32[4, 8], %13: f32[8, 8], %14: b8[4, 8]) {\n"
                           "      %15: f32[4, 8] = full() {size = [4, 8], fill_value = 5, dtype = f32}\n"
                           "      return %15\n"
                           "    }\n"
                           "  }\n"
                           "  return %4\n"
                           "}\n");
    static const uint8_t kept[32] = {1, 0, 0, 1, 1};
    rp_tensor *x = FILLED(1, 4, 8), *w = FILLED(2, 8, 8), *mask = rp_from_data(kept, RP_DIMS(4, 8), RP_BOOL);
    for (uint8_t on = 0; on < 2; on++) {
        rp_tensor *in[] = {rp_from_data(&on, RP_NO_DIMS, RP_BOOL), x, w, mask}, *out = NULL;
        rp__executable *p = NULL;
        (void)rp__pipeline_program(ir, in, 4, NULL, &p);
        show_error();
        rp__executable_facts facts;
        rp__executable_facts_of(p, &facts);
        unsigned makers = 0;
        for (size_t k = 0; k < facts.n_kernels; k++) makers += strstr(facts.kernels[k].ops, "full+where") != NULL;
        assert_int_equal(makers, 2);
        assert_int_equal(facts.n_kernels, 3); /* linear with the second of them, and the other branch */
        assert_int_equal(rp__executable_run(p, in, 4, &out, 1, NULL, 0, NULL), RP_OK);
        rp_tensor *three = rp_full(RP_DIMS(4, 8), rp_f64(3)), *five = rp_full(RP_DIMS(4, 8), rp_f64(5));
        rp_tensor *expected = rp_where(mask, rp_linear(rp_where(mask, x, three), w, NULL), three);
        assert_same(on ? expected : five, out);
        rp__executable_free(p);
    }
    rp_ir_release(ir);
}

/* Each product reads all before it: waiting for the one before it is enough. */
static void ladder(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *a = rp_matmul(in[0], in[0]), *b = rp_matmul(a, in[0]), *c = rp_matmul(a, b), *d = rp_matmul(b, c);
    out[0] = a;
    out[1] = d;
}
static void test_edges(void **state) {
    (void)state;
    rp_tensor *in[] = {FILLED(1, 16, 16)};
    rp_ir *ir = rp_trace((rp_fn){ladder, NULL, 0, "ladder"}, in, 1, 2);
    rp__executable *p = NULL;
    (void)rp__pipeline_program(ir, in, 1, NULL, &p);
    show_error();
    rp__executable_facts facts;
    rp__executable_facts_of(p, &facts);
    assert_int_equal(facts.n_launches, 4);
    assert_int_equal(facts.n_edges, 3); /* of five that the slots say */
    rp__executable_free(p);
    rp_ir_release(ir);
    compare(ladder, NULL, in, in, 1, 2, 4);
}

static void centre(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *m = rp_mean(in[0], RP_DIMS(1), true);
    rp_tensor *c = rp_sub(in[0], m);
    out[0] = rp_sum(rp_mul(c, c), RP_DIMS(1));
    out[1] = c;
}
static void test_centre(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 9, 31)}, *b[] = {FILLED(2, 9, 31)};
    compare(centre, NULL, a, b, 1, 2, 1);
}

static void in_place(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_mul(in[0], in[0]);
    rp_tensor *row = rp_select(x, 0, 2);
    rp_add_(row, rp_select(in[0], 0, 1), RP_OPTIONS(rp_add_options, .alpha = rp_i64(2)));
    rp_mul_scalar_(rp_slice(x, 1, 3, INT64_MAX, 2), rp_f64(0.5));
    out[0] = rp_exp(x);
    out[1] = x;
    out[2] = rp_transpose(x, 0, 1);
}
static void test_in_place(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 5, 12)}, *b[] = {FILLED(2, 5, 12)};
    compare(in_place, NULL, a, b, 1, 3, 0);
}

static void linear_net(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *h = rp_relu(rp_linear(in[0], in[1], in[2]));
    out[0] = rp_log_softmax(rp_linear(h, in[3], in[4]), 1);
}
static void test_linear(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 4, 10), FILLED(2, 64, 10), FILLED(3, 64), FILLED(4, 10, 64), FILLED(5, 10)};
    compare(linear_net, NULL, a, a, 5, 1, 4);
}

static void reshapes(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_mul_scalar(in[0], rp_f64(3)); /* (4, 6, 10) */
    rp_tensor *y = rp_sin(rp_view(x, RP_DIMS(24, 10)));
    out[0] = rp_add(rp_view(y, RP_DIMS(4, 3, 2, 10)), in[1]); /* + (2, 10) */
    out[1] = rp_sum(y, RP_DIMS(1));
}
static void test_reshapes(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 4, 6, 10), FILLED(2, 2, 10)};
    compare(reshapes, NULL, a, a, 2, 2, 1);
}

static void inner(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_tanh(rp_mul(in[0], in[1]));
}
static void checkpoint(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_fn fn = {inner, ctx, 0, "inner"};
    rp_tensor *args[] = {rp_sin(in[0]), in[1]}, *y = NULL;
    rp_checkpoint(fn, args, 2, &y, 1);
    out[0] = rp_exp(y);
}
static void test_checkpoint(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 6, 5), FILLED(2, 6, 5)}, *b[] = {FILLED(3, 6, 5), FILLED(4, 6, 5)};
    compare(checkpoint, NULL, a, b, 2, 1, 1);
}

static void mlp(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_linear(rp_relu(rp_linear(in[0], in[1], in[2])), in[3], in[4]);
}
static void mlp_kept(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[1] = rp_linear(in[0], in[1], in[2]);
    out[0] = rp_linear(rp_relu(out[1]), in[3], in[4]);
}
static void convolution(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_relu(rp_conv2d(in[0], in[1], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1), RP_DIMS(1, 1), 1));
}
static void product(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) { /* a view between */
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_relu(rp_matmul(in[0], in[1]));
}
static void test_relu_epilogue(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 5, 7, 12), FILLED(2, 16, 12), FILLED(3, 16), FILLED(4, 9, 16), FILLED(5, 9)},
              *b[] = {FILLED(6, 5, 7, 12), FILLED(7, 16, 12), FILLED(8, 16), FILLED(9, 9, 16), FILLED(10, 9)};
    float *x = rp_data(b[0]), *w = rp_data(b[1]), *bias = rp_data(b[2]);
    x[5] = NAN; /* a row of NaNs */
    x[30] = INFINITY;
    for (int k = 0; k < 12; k++) {
        w[k] = 0; /* zeros of both signs */
        w[12 + k] = -0.0f;
    }
    bias[0] = bias[1] = -0.0f;
    compare(mlp, NULL, a, b, 5, 1, 2);
    assert_int_equal(compare(mlp_kept, NULL, a, b, 5, 2, 0), 2); /* what relu reads is stored by the way */
    rp_tensor *c[] = {FILLED(1, 2, 3, 6, 5), FILLED(2, 4, 3, 3, 3)},
              *d[] = {FILLED(3, 2, 3, 6, 5), FILLED(4, 4, 3, 3, 3)};
    ((float *)rp_data(d[0]))[7] = NAN;
    compare(convolution, NULL, c, d, 2, 1, 1);
    rp_tensor *e[] = {FILLED(1, 2, 3, 6), FILLED(2, 6, 4)}, *g[] = {FILLED(3, 2, 3, 6), FILLED(4, 6, 4)};
    compare(product, NULL, e, g, 2, 1, 1);
}

static void softmax_of_gelu(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_softmax(rp_gelu(in[0]), -1);
}
/* One graph at two sizes is two programs over the same kernels. */
static void test_sizes_share(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 6, 40)}, *b[] = {FILLED(4, 33, 72)};
    rp_tensor *const *in[] = {a, b};
    rp_body *const bodies[] = {softmax_of_gelu, chain};
    rp_tensor *c[] = {FILLED(1, 33, 18), FILLED(2, 33, 18)}, *d[] = {FILLED(3, 5, 130), FILLED(4, 5, 130)};
    for (int which = 0; which < 2; which++) {
        rp__executable *p[2] = {0};
        rp_ir *ir[2], *functional[2] = {0};
        rp__executable_facts facts[2];
        for (int k = 0; k < 2; k++) {
            rp_tensor *const *use = which == 0 ? in[k] : k == 0 ? c : d;
            size_t n = which == 0 ? 1 : 2;
            ir[k] = rp_trace((rp_fn){bodies[which], NULL, 0, "test"}, use, n, 1);
            show_error();
            rp__functionalise(ir[k], &functional[k]);
            (void)rp__pipeline_program(functional[k], use, n, NULL, &p[k]);
            show_error();
            rp__executable_facts_of(p[k], &facts[k]);
        }
        assert_true(facts[0].n_kernels > 0);
        assert_int_equal(facts[0].n_kernels, facts[1].n_kernels);
        for (size_t k = 0; k < facts[0].n_kernels; k++) {
            assert_non_null(facts[0].kernels[k].kernel);
            assert_ptr_equal(facts[0].kernels[k].kernel, facts[1].kernels[k].kernel);
        }
        for (int k = 0; k < 2; k++) {
            rp__executable_free(p[k]);
            rp_ir_release(functional[k]);
            rp_ir_release(ir[k]);
        }
    }
}

static void drop(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_dropout(rp_gelu(in[0]), 0.3, true);
    out[0] = rp_dropout(rp_add(x, in[0]), 0.5, true);
}
/* Sizes that became symbols: the counters of random numbers follow the sizes of each call. */
static void test_dropout_sizes(void **state) {
    (void)state;
    static const int64_t rows_of[] = {5, 5, 7, 3, 12, 7, 5, 33};
    rp_compiled *f = rp_compile((rp_fn){drop, NULL, 0, "drop"}, RP_OPTIONS(rp_compile_options, .backend = "fused"));
    rp_tensor *expected[8], *got[8];
    rp_manual_seed(11);
    for (int k = 0; k < 8; k++) {
        rp_tensor *x = FILLED(k, rows_of[k], 9);
        drop(NULL, &x, 1, &expected[k], 1);
    }
    rp_manual_seed(11);
    for (int k = 0; k < 8; k++) {
        rp_tensor *x = FILLED(k, rows_of[k], 9);
        (void)rp_call(f, &x, 1, &got[k], 1);
        show_error();
    }
    for (int k = 0; k < 8; k++) assert_same(expected[k], got[k]);
    bool symbolic = false;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        symbolic = symbolic || strcmp(e.reason, "symbolic-size") == 0;
    }
    assert_true(symbolic);
    rp_compiled_release(f);
}

/* Parts of a cat that are stored where it has them: strided and dense, read by others, of other types, a cat in a cat, empty ones;
   and what is copied: an argument, a result, what lies in another cat. */
static void joined(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *a = rp_sin(in[0]), *b = rp_exp(a), *half = rp_to_dtype(rp_neg(b), RP_F16), *p = rp_linear(in[0], in[1]);
    rp_tensor *wide =
        rp_cat(((rp_tensor *const[]){a, rp_unsqueeze(rp_sum(b, RP_DIMS(1)), 1), half}), 3, 1); /* (4, 17) */
    out[0] = rp_softmax(wide, 1);
    rp_tensor *tall = rp_cat(((rp_tensor *const[]){p, rp_mul(p, p), in[2]}), 3, 0); /* (12, 8) */
    out[1] = rp_cat(((rp_tensor *const[]){tall, rp_cos(tall)}), 2, 0);
    out[2] = rp_tanh(in[2]);
    out[3] = rp_cat(((rp_tensor *const[]){rp_permute(rp_view(out[2], RP_DIMS(2, 2, 8)), RP_DIMS(1, 0, 2)),
                                          rp_view(rp_erf(tall), RP_DIMS(2, 6, 8))}),
                    2, 1);
    out[4] = rp_linear(rp_cat(((rp_tensor *const[]){rp_relu(tall), rp_slice(rp_cos(tall), 0, 0, 0, 1)}), 2, 0), in[1]);
    rp_tensor *rows = rp_cat(((rp_tensor *const[]){p, p}), 2, 1); /* a library stores it, twice in one cat */
    out[5] = rp_slice(rp_cat(((rp_tensor *const[]){rp_layer_norm(rows, RP_DIMS(16), NULL, NULL, 1e-5), rows}), 2, 1), 1,
                      3, 20, 1);
}
static void test_joined(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 4, 8), FILLED(2, 8, 8), FILLED(3, 4, 8)},
              *b[] = {FILLED(4, 4, 8), FILLED(5, 8, 8), FILLED(6, 4, 8)};
    compare(joined, NULL, a, b, 3, 6, 0);
}

/* One kernel for each shape, none for the cat; its reader. */
static void branches(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_cat(((rp_tensor *const[]){rp_relu(in[0]), rp_tanh(in[1]), rp_neg(rp_sin(in[0]))}), 3, 1);
}
static void test_branches(void **state) {
    (void)state;
    rp_tensor *a[] = {FILLED(1, 5, 8), FILLED(2, 5, 3)}, *b[] = {FILLED(3, 5, 8), FILLED(4, 5, 3)};
    assert_int_equal(compare(branches, NULL, a, b, 2, 1, 2), 2);
}

/* Sums over rows and along rows, and what follows from either, are one walk over the elements and one over the sums of its lanes. */
static void rows_and_columns(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_sin(in[0]), *p = rp_softmax(x, 1);
    out[0] = rp_sum(p, RP_DIMS(0));
    out[1] = rp_mean(rp_mul(x, in[0]), RP_DIMS(0), true);
    out[2] = rp_tanh(rp_add(rp_sum(x, RP_DIMS(0)), in[1]));
    out[3] = rp_sum(x, RP_DIMS(1));
    out[4] = p;
}
/* The lanes of a column go by the order of its rows, whatever dims they are. */
static void columns_of_two_dims(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_exp(in[0]); /* (n, 3, 40), n and 3 apart in memory */
    out[0] = rp_sum(x, RP_DIMS(0, 1));
    out[1] = rp_sum(x, RP_DIMS(2));
    out[2] = rp_layer_norm(x, RP_DIMS(40), NULL, NULL, 1e-5);
}
static void test_columns(void **state) {
    (void)state;
    static const int64_t rows[] = {256, 257, 300, 1000, 8192, 8193}, lengths[] = {32, 40, 77};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        for (size_t c = 0; c < (rows[r] < 8000 ? 3 : 1); c++) {
            rp_tensor *a[] = {FILLED(1, rows[r], lengths[c]), FILLED(2, lengths[c])},
                      *b[] = {FILLED(3, rows[r], lengths[c]), FILLED(4, lengths[c])};
            size_t launches = compare(rows_and_columns, NULL, a, b, 2, 5, 0);
            assert_int_equal(launches == 2, rows[r] <= 8192);
            rp_tensor *half[] = {rp_to_dtype(a[0], RP_F16), rp_to_dtype(a[1], RP_F16)};
            assert_int_equal(compare(rows_and_columns, NULL, half, half, 2, 5, 0) == 2, rows[r] <= 8192);
        }
        rp_tensor *t = rp_slice(rp_transpose(FILLED(5, 4, rows[r], 40), 0, 1), 1, 0, 3, 1);
        (void)compare(columns_of_two_dims, NULL, &t, &t, 1, 3, 0);
    }
    rp_compiled *f =
        rp_compile((rp_fn){rows_and_columns, NULL, 0, "columns"}, RP_OPTIONS(rp_compile_options, .backend = "fused"));
    static const int64_t sizes[] = {300, 400, 400, 255, 500, 8193, 500, 256, 255, 300};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) { /* one graph, in and out of what columns take */
        rp_scope scope = rp_scope_begin();
        rp_tensor *in[] = {FILLED((int)k, sizes[k], 40), FILLED(2, 40)}, *expected[5], *got[5];
        rows_and_columns(NULL, in, 2, expected, 5);
        rp_call(f, in, 2, got, 5);
        show_error();
        for (size_t i = 0; i < 5; i++) assert_same(expected[i], got[i]);
        rp_scope_end(scope, NULL, 0);
    }
    rp_compiled_release(f);
    rp_tensor *few[] = {FILLED(1, 255, 40), FILLED(2, 40)};
    assert_true(compare(rows_and_columns, NULL, few, few, 2, 5, 0) > 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_of_others),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_gathered),
        cmocka_unit_test(test_still_places),
        cmocka_unit_test(test_constant_in_block),
        cmocka_unit_test(test_centre),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_reshapes),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_joined),
        cmocka_unit_test(test_branches),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_scatters),
        cmocka_unit_test(test_checkpoint),
        cmocka_unit_test(test_relu_epilogue),
        cmocka_unit_test(test_sizes_share),
        cmocka_unit_test(test_dropout_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
