/* Compiled functions whose arguments move and whose results are kept, on the CUDA device: bits against eager on the same device.
   Products of more than 2^22 multiply-adds are cuBLASLt's, whose graph nodes cannot be re-pointed.
   ctest: labels=cuda timeout=600 cost=50 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "compile/pipeline.h"
#include "support/cuda.h"
#include "support/region_cases.h"

enum { M = 192, N = 128, K = 192 };

static void show_error(void) {
    if (rp_failed()) fail_msg("%s", rp_error_message());
}

/* n floats on the device, the first at element `skip` of its storage. */
static rp_tensor *filled(int seed, int64_t rows, int64_t columns, int64_t skip) {
    int64_t n = rows * columns + skip;
    float *data = malloc((size_t)n * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = (float)((i * 7919 + seed * 104729) % 2003 - 1001) / 257.0f;
    rp_tensor *t = rp_from_data(data, RP_DIMS(n), RP_F32);
    free(data);
    return rp_view(rp_slice(t, 0, skip, n, 1), RP_DIMS(rows, columns));
}

/* The same in double, whose large products are a library's. */
static rp_tensor *filled_f64(int seed, int64_t rows, int64_t columns, int64_t skip) {
    rp_tensor *t = rp_to_dtype(filled(seed, 1, rows * columns + skip, 0), RP_F64);
    return rp_view(rp_slice(rp_view(t, RP_DIMS(rows * columns + skip)), 0, skip, rows * columns + skip, 1),
                   RP_DIMS(rows, columns));
}

static void assert_same(rp_tensor *a, rp_tensor *b) {
    show_error();
    size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    assert_int_equal(rp_numel(a), rp_numel(b));
    char *x = malloc(bytes), *y = malloc(bytes);
    assert_int_equal(rp_to_host(a, x, bytes), RP_OK);
    assert_int_equal(rp_to_host(b, y, bytes), RP_OK);
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

/* Times that `kind` with `reason` happened; -1: there is no such entry. */
static int64_t fact(rp_compiled *f, const char *kind, const char *reason) {
    int64_t n = -1;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, kind) == 0 && strcmp(e.reason, reason) == 0) n = (n < 0 ? 0 : n) + e.count;
    }
    return n;
}

static void product(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_matmul(in[0], in[1]);
    out[1] = rp_tanh(out[0]);
}
static void pointwise(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in;
    for (size_t k = 0; k < n_out; k++) out[k] = rp_mul(rp_sin(in[0]), in[1]);
}
static void step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) { /* writes in[0] */
    (void)ctx, (void)n_in, (void)n_out;
    rp_add_(in[0], rp_matmul(in[0], in[1]));
    out[0] = rp_sum(in[0]);
}

static rp_compiled *compiled(rp_body *body, const char *name) {
    rp_compiled *f = rp_compile((rp_fn){body, NULL, 0, name}, RP_OPTIONS(rp_compile_options, .backend = "fused"));
    show_error();
    return f;
}

static void check_call(rp_compiled *f, rp_body *body, rp_tensor *const *in, rp_tensor **out, size_t n_out) {
    rp_tensor *expected[2];
    body(NULL, in, 2, expected, n_out);
    show_error();
    (void)rp_call(f, in, 2, out, n_out);
    show_error();
    for (size_t k = 0; k < n_out; k++) assert_same(expected[k], out[k]);
}

static void gathered(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *places = rp_to_dtype(rp_relu(in[1]), RP_I64); /* 0 to 3 */
    rp_tensor *rows = rp_embedding(in[0], rp_select(places, 1, 5));
    out[0] = rp_layer_norm(rp_add(rows, in[0]), RP_DIMS(K), NULL, NULL, 1e-5);
    out[1] = rp_sin(rp_gather(in[0], 1, places));
}

static void test_gathered(void **state) { /* computed places, and what lies there, stay in registers */
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = compiled(gathered, "gathered");
    for (int k = 0; k < 3; k++) {
        rp_tensor *in[2] = {filled(k, M, K, 0), filled(10 + k, M, N, 0)}, *out[2];
        check_call(f, gathered, in, out, 2);
    }
    assert_int_equal(fact(f, "unfused", "gathered-operand"), -1);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

/* A long row, sorted and selected from: ops of several launches that share memory of the program. */
static void ordered(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *places, *best;
    rp_tensor *values = rp_sort(rp_flatten(rp_mul(in[0], in[1])), 0, true, NULL, &places);
    out[0] = rp_add(values, rp_to_dtype(places, RP_F32));
    values = rp_topk(rp_flatten(rp_sub(in[0], in[1])), 100, 0, true, true, &best);
    out[1] = rp_add(values, rp_to_dtype(best, RP_F32));
}

static void test_ordered(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = compiled(ordered, "ordered");
    for (int k = 0; k < 3; k++) {
        rp_tensor *in[2] = {filled(k, 90, 101, 0), filled(10 + k, 90, 101, 0)}, *out[2];
        check_call(f, ordered, in, out, 2);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

/* Whole numbers that come round at the end of 64 bits, or whose quotient is not known where a thread has no element, and places made of them. */
static void wrapping(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    const rp_scalar none = rp_none(), zero = rp_i64(0), most = rp_i64(9);
    rp_tensor *x = in[0], *positive = rp_clamp(x, zero);
    rp_tensor *a = rp_clamp(rp_abs(x), none, most), *b = rp_clamp(rp_mul(positive, positive), none, rp_i64(100)),
              *c = rp_clamp(rp_neg(rp_clamp(x, none, rp_i64(5))), none, rp_i64(100)),
              *d = rp_clamp(rp_sub_scalar(rp_clamp(x, none, most), rp_i64(1)), zero);
    out[0] = rp_add(rp_add(a, rp_mul_scalar(b, rp_i64(3))),
                    rp_add(rp_mul_scalar(c, rp_i64(5)), rp_mul_scalar(d, rp_i64(7))));
    rp_tensor *quotient =
        rp_floor_divide(rp_clamp(x, rp_i64(20), rp_i64(50)), rp_clamp(rp_neg(x), rp_i64(1), rp_i64(10)));
    out[1] = rp_sum(rp_take(in[1], rp_sub_scalar(quotient, rp_i64(2))), RP_DIMS(1));
}

static void test_wrapping(void **state) {
    (void)state;
    enum { ROWS = 5, COLUMNS = 100 };
    static const int64_t hard[] = {INT64_MIN, INT64_MAX, INT64_C(3037000500), -5, 7, INT64_MIN + 1, 49, -50, 30, 0};
    rp_scope scope = rp_scope_begin();
    int64_t values[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = hard[i % 10];
    rp_compiled *f = compiled(wrapping, "wrapping");
    rp_tensor *in[2] = {rp_from_data(values, RP_DIMS(ROWS, COLUMNS), RP_I64), filled(1, 7, 7, 0)}, *out[2];
    for (int k = 0; k < 3; k++) check_call(f, wrapping, in, out, 2);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

/* A part of what a scatter writes into is read again afterwards. */
static void part_read_again(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *a = rp_relu(in[0]), *both = rp_cat(RP_TENSORS(a, rp_relu(in[1])), 0);
    out[0] = rp_scatter_add(both, 0, rp_zeros(RP_DIMS(1, 4), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)),
                            rp_full(RP_DIMS(1, 4), rp_f64(100)));
    out[1] = rp_add(a, rp_slice(out[0], 0, 0, 2, 1));
}

static void test_part_read_again(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = compiled(part_read_again, "part_read_again");
    rp_tensor *in[2] = {filled(1, 2, 4, 0), filled(2, 3, 4, 0)}, *out[2];
    for (int k = 0; k < 3; k++) check_call(f, part_read_again, in, out, 2);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

/* Two products of one, and the product of those: the longest path has three of four nodes. */
static void narrow(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *a = rp_matmul(in[0], in[0]);
    out[0] = rp_matmul(rp_matmul(a, in[0]), rp_matmul(in[0], a));
}
static void wide(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in;
    for (size_t k = 0; k < n_out; k++) out[k] = rp_matmul(in[k % 2], in[k / 2]);
}
/* One kernel behind the other over in[0], and beside them a kernel for each further argument. */
enum { DEEP = 7 };
static void beside(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_out;
    out[0] = in[0];
    for (int64_t k = 0; k < DEEP; k++) out[0] = rp_softmax(out[0], k % 2);
    for (size_t k = 1; k < n_in; k++) out[k] = rp_softmax(in[k], 1);
}
static void apart(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_out;
    for (size_t k = 0; k < n_in; k++) out[k] = rp_sin(in[k]);
}
static void pictures(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_out;
    for (size_t k = 0; k + 1 < n_in; k++)
        out[k] = rp_conv2d(in[k], in[n_in - 1], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1), RP_DIMS(1, 1), 1);
}
/* A line where what lies beside the longest path is short or has no room; else forks, whose number of edges is given. Products are of f64: equal
   ones of f32 side by side would be one launch (test_products.c). */
static void test_line(void **state) {
    (void)state;
    rp_tensor *small = filled(1, 16, 16, 0), *large[] = {filled_f64(1, M, M, 0), filled_f64(2, M, M, 0)},
              *one[] = {small, filled(2, 17, 16, 0)},
              *four[] = {small, filled(2, 17, 16, 0), filled(3, 18, 16, 0), filled(4, 19, 16, 0), filled(5, 20, 16, 0)},
              *long_row[] = {small, filled(2, 2, 40000, 0)},
              *full[] = {rp_empty(RP_DIMS(4096, 2048)), rp_empty(RP_DIMS(4097, 2048))},
              *filters = rp_empty(RP_DIMS(64, 64, 3, 3)),
              *many[] = {rp_empty(RP_DIMS(32, 64, 56, 56)), rp_empty(RP_DIMS(33, 64, 56, 56)), filters},
              *few[] = {rp_empty(RP_DIMS(1, 64, 14, 14)), rp_empty(RP_DIMS(1, 64, 13, 14)), filters};
    const struct {
        const char *what;
        rp_body *body;
        rp_tensor *const *in;
        size_t n_in, n_out;
        bool line;
        uint32_t nodes, edges;
    } cases[] = {
        {"one product beside three", narrow, large, 2, 1, false, 4, 4},
        {"four products", wide, large, 2, 4, false, 4, 0},
        {"one short loop beside seven", beside, one, 2, 2, true, DEEP + 1, DEEP - 1},
        {"four short loops beside seven", beside, four, 5, 5, false, DEEP + 4, DEEP - 1},
        {"a loop that few blocks run for long, beside seven", beside, long_row, 2, 2, false, DEEP + 1, DEEP - 1},
        {"two loops that take all of the memory's time", apart, full, 2, 2, true, 2, 0},
        {"two convolutions of many tiles", pictures, many, 3, 2, true, 2, 0},
        {"two convolutions of few tiles", pictures, few, 3, 2, false, 2, 0},
    };
    for (unsigned round = 0; round < 3 * sizeof cases / sizeof *cases; round++) {
        const unsigned k = round / 3;
        const rp_graph_layout layout = (rp_graph_layout)(round % 3);
        const rp__executable_options options = {.layout = layout};
        rp_scope scope = rp_scope_begin();
        rp_ir *ir = rp_trace((rp_fn){cases[k].body, NULL, 0, "line"}, cases[k].in, cases[k].n_in, cases[k].n_out);
        rp__executable *p = NULL;
        rp__executable_facts facts;
        rp_tensor *got[5] = {NULL}, *want[5] = {NULL};
        (void)rp__pipeline_program(ir, cases[k].in, cases[k].n_in, &options, &p);
        show_error();
        rp__executable_facts_of(p, &facts);
        const bool line = layout == RP_LAYOUT_LINE || (layout == RP_LAYOUT_AUTO && cases[k].line);
        if (facts.n_launches != cases[k].nodes || facts.n_edges != (line ? cases[k].nodes - 1 : cases[k].edges))
            fail_msg("%s, layout %d: %zu launches, %zu edges", cases[k].what, (int)layout, (size_t)facts.n_launches,
                     (size_t)facts.n_edges);
        if (cases[k].body != apart && cases[k].body != pictures) {
            assert_int_equal(rp__executable_run(p, cases[k].in, cases[k].n_in, got, cases[k].n_out, NULL, 0, NULL),
                             RP_OK);
            cases[k].body(NULL, cases[k].in, cases[k].n_in, want, cases[k].n_out);
            for (size_t i = 0; i < cases[k].n_out; i++) assert_same(got[i], want[i]);
        }
        rp__executable_free(p);
        rp_ir_release(ir);
        rp_scope_end(scope, NULL, 0);
    }
}

static void test_layout_told(void **state) { /* explain: the layout and why, and how many executables there are */
    (void)state;
    static const char *const reasons[][2] = {
        {"long-path", "short-path"}, {"layout-asked", "layout-asked"}, {"layout-asked", "layout-asked"}};
    enum { SMALL = 16 };
    rp_tensor *w = filled_f64(1, M, M, 0),
              *places[] = {filled_f64(2, M, M, 0), filled_f64(3, M, M, 0), filled_f64(4, M, M, 0)},
              *little[] = {filled(1, SMALL, SMALL, 0), filled(2, SMALL + 1, SMALL, 0)}, *out[2];
    for (int round = 0; round < 6; round++) {
        const int k = round % 2, layout = round / 2;
        rp_compiled *f = rp_compile((rp_fn){k ? wide : beside, NULL, 0, "layout"},
                                    RP_OPTIONS(rp_compile_options, .layout = (rp_graph_layout)layout));
        for (int i = 0; i < 3; i++) {
            rp_scope scope = rp_scope_begin();
            check_call(f, k ? wide : beside, k ? (rp_tensor *[]){places[0], w} : little, out, 2);
            rp_scope_end(scope, NULL, 0);
        }
        bool line = layout == RP_LAYOUT_LINE || (layout == RP_LAYOUT_AUTO && !k);
        assert_int_equal(fact(f, "graph", reasons[layout][k]), 1);
        assert_int_equal(rc_told(f, "graph", line ? "device graph in one line: " : "device graph with forks: "), 1);
        rp_compiled_release(f);
    }
    rp_compiled *f = compiled(pointwise, "pointwise");
    for (int i = 0; i < 12; i++) {
        rp_scope scope = rp_scope_begin();
        check_call(f, pointwise, (rp_tensor *[]){places[i < 4 ? 0 : i % 3], w}, out, 1);
        rp_scope_end(scope, NULL, 0);
        if (i == 3) assert_int_equal(fact(f, "graph", ""), 1);
    }
    assert_int_equal(fact(f, "graph", ""), 3); /* one for each place that comes back */
    rp_compiled_release(f);
}

static void test_library_moved(void **state) {
    (void)state;
    rp_compiled *f = compiled(product, "product");
    rp_tensor *w = filled_f64(1, K, N, 0), *out[2];
    for (int k = 0; k < 5; k++) {
        rp_scope s = rp_scope_begin();
        rp_tensor *in[] = {filled_f64(10 + k, M, K, k == 3 ? 1 : 0), w}, *keep = filled_f64(0, M, K, 0);
        check_call(f, product, in, out, 2);
        (void)keep;
        rp_retain(in[0]); /* so that the next one lies elsewhere */
        rp_scope_end(s, NULL, 0);
    }
    assert_int_equal(fact(f, "copy", "library-operand"),
                     3); /* the first call runs as it traces, the second makes the program */
    assert_int_equal(fact(f, "patch", "moved-input"), -1);
    rp_compiled_release(f);
}

static void test_library_results(void **state) { /* every older result stays what it was */
    (void)state;
    enum { ROUNDS = 6 };
    rp_compiled *f = compiled(product, "product");
    rp_tensor *w = filled_f64(1, K, N, 0), *x = filled_f64(2, M, K, 0), *out[ROUNDS][2], *expected[ROUNDS][2];
    for (int k = 0; k < ROUNDS; k++) {
        rp_tensor *in[] = {x, w};
        rp_mul_scalar_(x, rp_f64(1.25));
        product(NULL, in, 2, expected[k], 2);
        (void)rp_call(f, in, 2, out[k], 2);
        show_error();
    }
    for (int k = 0; k < ROUNDS; k++) {
        assert_same(expected[k][0], out[k][0]);
        assert_same(expected[k][1], out[k][1]);
    }
    assert_true(fact(f, "copy", "library-operand") >= ROUNDS - 2); /* the second call is the one that traces again */
    rp_compiled_release(f);
}

static void alone(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_matmul(in[0], in[1]);
}

/* One call has a graph for memory that stays where it is alone: arguments move and results are held without copies. */
static void test_library_alone(void **state) {
    (void)state;
    enum { ROUNDS = 6 };
    rp_compiled *f = compiled(alone, "alone");
    rp_tensor *w = filled_f64(1, K, N, 0), *out[ROUNDS], *expected[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) {
        rp_tensor *in[] = {filled_f64(2 + k, M, K, 0), w};
        alone(NULL, in, 2, &expected[k], 1);
        (void)rp_call(f, in, 2, &out[k], 1);
        show_error();
    }
    for (int k = 0; k < ROUNDS; k++) assert_same(expected[k], out[k]);
    assert_int_equal(fact(f, "copy", "library-operand"), -1);
    assert_int_equal(rc_told(f, "graph", "device graph"), 0);
    assert_int_equal(fact(f, "graph", ""), 0);
    rp_compiled_release(f);
}

/* Memory that stays gets a graph, another one's memory is not written by it, and what comes and goes is waited for longer. */
static void test_library_steady(void **state) {
    (void)state;
    enum { PLACES = 3, ROUNDS = 150 };
    rp_compiled *f = compiled(alone, "steady");
    rp_tensor *w = filled_f64(1, K, N, 0), *x[PLACES], *held = NULL, *kept = NULL;
    int graphed = 0;
    for (int k = 0; k < PLACES; k++) x[k] = filled_f64(2 + k, M, K, 0);
    for (int k = 0; k < ROUNDS; k++) {
        rp_scope s = rp_scope_begin();
        rp_tensor *in[] = {x[k < 40 ? 0 : k / 10 % PLACES], w}, *want, *out;
        rp_mul_scalar_(in[0], rp_f64(k % 2 ? 1.25 : 0.8));
        alone(NULL, in, 2, &want, 1);
        (void)rp_call(f, in, 2, &out, 1);
        show_error();
        assert_same(want, out);
        graphed += fact(f, "graph", "") == 1;
        if (k == 30) held = rp_retain(out), kept = rp_retain(want); /* where the graph writes */
        rp_scope_end(s, NULL, 0);
    }
    assert_same(kept, held);
    assert_true(graphed > 25 && graphed < 100);
    assert_int_equal(fact(f, "copy", "library-operand"), -1);
    rp_release(held);
    rp_release(kept);
    rp_compiled_release(f);
}

static void test_library_written(void **state) { /* an argument that is read by the library and written in place */
    (void)state;
    rp_compiled *f = compiled(step, "step");
    rp_tensor *w = filled_f64(1, M, M, 0);
    for (int k = 0; k < 4; k++) {
        rp_scope s = rp_scope_begin();
        rp_tensor *a[] = {filled_f64(20 + k, M, M, 0), w}, *b[] = {filled_f64(20 + k, M, M, 0), w}, *x, *y;
        rp_retain(b[0]);
        step(NULL, a, 2, &x, 1);
        (void)rp_call(f, b, 2, &y, 1);
        show_error();
        assert_same(x, y);
        assert_same(a[0], b[0]);
        rp_scope_end(s, NULL, 0);
    }
    assert_true(fact(f, "copy", "library-operand") >= 2);
    rp_compiled_release(f);
}

/* Of two products in a row the first reads what nothing here writes, the second what is made; the third what is written behind it. */
static void weights(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_matmul(rp_sin(in[0]), in[1]);
    out[1] = rp_matmul(rp_cos(out[0]), rp_softmax(in[1], 0));
}
static void weights_written(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_matmul(rp_sin(in[0]), in[1]);
    rp_add_(in[1], rp_softmax(in[1], 0));
    out[1] = rp_matmul(rp_cos(out[0]), in[1]);
}
static void test_weights_ahead(void **state) {
    enum { ROWS = 24, SIDE = 512 };
    (void)state;
    rp_compiled *frozen = compiled(weights, "weights"), *written = compiled(weights_written, "weights_written");
    for (int k = 0; k < 4; k++) {
        rp_scope s = rp_scope_begin();
        rp_tensor *in[2] = {filled(k, ROWS, SIDE, 0), filled(10 + k, SIDE, SIDE, 0)}, *out[2], *expected[2];
        check_call(frozen, weights, in, out, 2);
        rp_tensor *a[] = {in[0], rp_clone(in[1])}, *b[] = {in[0], rp_clone(in[1])};
        weights_written(NULL, a, 2, expected, 2);
        (void)rp_call(written, b, 2, out, 2);
        for (unsigned i = 0; i < 2; i++) assert_same(expected[i], out[i]);
        assert_same(a[1], b[1]);
        rp_scope_end(s, NULL, 0);
    }
    assert_int_equal(fact(frozen, "graph", "reads-ahead"), 1);
    assert_int_equal(fact(written, "graph", "reads-ahead"), -1);
    rp_compiled_release(frozen);
    rp_compiled_release(written);
}

/* Weights in one buffer with what the function writes, beside it or partly in it; the buffer is ours, or its parts are memory of others. */
static void weights_beside(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_matmul(rp_sin(in[0]), in[1]);
    rp_add_(in[2], rp_mean(out[0]));
}
static rp_tensor *rows_of(rp_tensor *t, int64_t from, int64_t to, bool foreign) {
    const int64_t columns = rp_size(t, 1);
    if (!foreign) return rp_slice(t, 0, from, to, 1);
    rp_tensor *blob = rp_from_blob((float *)rp_data(t) + from * columns, RP_DIMS(to - from, columns), NULL, RP_F32,
                                   rp_cuda(0), NULL, NULL);
    assert_int_equal(rp_declare_stable(blob), RP_OK);
    return blob;
}
static void test_weights_beside(void **state) {
    enum { ROWS = 24, SIDE = 512 };
    (void)state;
    static const struct {
        int64_t from, to; /* rows that are written; the weights are the first SIDE */
        bool foreign;
    } cases[] = {{SIDE, 2 * SIDE, false},     {SIDE, 2 * SIDE, true}, {SIDE + 1, SIDE + 2, false},
                 {SIDE - 1, SIDE + 1, false}, {SIDE - 1, SIDE, true}, {0, 1, false}};
    for (unsigned n = 0; n < sizeof cases / sizeof *cases; n++) {
        rp_scope s = rp_scope_begin();
        rp_compiled *f = compiled(weights_beside, "weights_beside");
        rp_tensor *both[2], *in[2][3], *out[2];
        for (int k = 0; k < 2; k++) { /* eager, compiled */
            both[k] = filled(3, 2 * SIDE, SIDE, 0);
            in[k][0] = filled(2, ROWS, SIDE, 0);
            in[k][1] = rows_of(both[k], 0, SIDE, cases[n].foreign);
            in[k][2] = rows_of(both[k], cases[n].from, cases[n].to, cases[n].foreign);
        }
        for (int call = 0; call < 4; call++) {
            weights_beside(NULL, in[0], 3, &out[0], 1);
            (void)rp_call(f, in[1], 3, &out[1], 1);
            assert_same(out[0], out[1]);
            assert_same(both[0], both[1]);
        }
        const int64_t want = cases[n].from >= SIDE ? 1 : -1, got = fact(f, "graph", "reads-ahead");
        if (got != want) fail_msg("case %u: %lld", n, (long long)got);
        rp_compiled_release(f);
        rp_scope_end(s, NULL, 0);
    }
}

static void test_alignment(void **state) {
    (void)state;
    rp_compiled *f = compiled(pointwise, "pointwise");
    rp_tensor *w = filled(1, 8, 64, 0), *out[2];
    static const int64_t skip[] = {0, 0, 0, 1, 2, 0, 3};
    for (size_t k = 0; k < sizeof skip / sizeof *skip; k++) {
        rp_tensor *in[] = {filled((int)k, 8, 64, skip[k]), w};
        check_call(f, pointwise, in, out, 1);
        if (k == 2) {
            assert_true(fact(f, "patch", "moved-input") >= 1);
            assert_int_equal(fact(f, "copy", "alignment"), -1);
        }
    }
    assert_int_equal(fact(f, "copy", "alignment"), 4); /* from the first misaligned one on */
    rp_compiled_release(f);
}

/* What is copied is copied at every call, also where the argument lies again as when the program was made. */
static void test_moved_back(void **state) {
    (void)state;
    rp_compiled *f = compiled(pointwise, "pointwise");
    rp_tensor *w = filled(1, 8, 64, 0), *first = filled(2, 8, 64, 0), *other = filled(3, 8, 64, 1), *out[2];
    for (int k = 0; k < 6; k++) {
        rp_tensor *in[] = {k == 3 || k == 4 ? other : first, w};
        check_call(f, pointwise, in, out, 1);
        rp_mul_scalar_(first, rp_f64(0.5)); /* its memory stays: only a copy finds the change */
    }
    assert_int_equal(fact(f, "copy", "alignment"), 3);
    rp_compiled_release(f);
}

static void test_foreign(void **state) {
    (void)state;
    rp_compiled *f = compiled(pointwise, "pointwise");
    rp_tensor *w = filled(1, 8, 64, 0), *out[2];
    for (int k = 0; k < 5; k++) {
        rp_tensor *own = filled(k, 8, 64, 0);
        rp_tensor *wrapped = rp_from_blob(rp_data(own), RP_DIMS(8, 64), NULL, RP_F32, rp_cuda(0), NULL, NULL);
        rp_tensor *in[] = {k < 2 ? own : wrapped, w};
        check_call(f, pointwise, in, out, 1);
    }
    assert_int_equal(fact(f, "copy", "foreign-memory"), 3);
    rp_compiled_release(f);
}

/* Few long columns, scans of few long rows, short rows side by side, rows of a warp: loops of several launches, and of lanes that differ. */
static void columns(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_argmax(rp_mul(rp_sin(in[0]), in[1]), 0, false);
    out[1] = rp_softmax(rp_mul(in[0], in[1]), 0);
}
static void long_scans(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sin(rp_logcumsumexp(rp_mul(in[0], in[1]), 1));
    out[1] = rp_add(rp_cumsum(rp_sin(in[0]), 1), in[1]);
}
static void lines(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_logcumsumexp(rp_add(in[0], in[1]), 0);
    out[1] = rp_mul(rp_cumsum(rp_sin(in[0]), 0), in[1]);
}
static void odd_rows(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_to_dtype(in[0], RP_BF16), *y = rp_to_dtype(in[1], RP_BF16);
    out[0] = rp_softmax(rp_mul(x, y), 1);
    out[1] = rp_sum(rp_add(x, y), RP_DIMS(1), false, NULL);
}

static void test_split_loops(void **state) {
    static const struct {
        rp_body *body;
        const char *name;
        int64_t rows, along;
    } works[] = {{columns, "columns", 9000, 15}, {columns, "columns", 17000, 8}, {long_scans, "scans", 2, 70000},
                 {lines, "lines", 7, 3000},      {lines, "lines", 31, 300},      {lines, "lines", 33, 300},
                 {odd_rows, "rows", 70, 147},    {odd_rows, "rows", 70, 1023}};
    (void)state;
    for (size_t w = 0; w < sizeof works / sizeof *works; w++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f = compiled(works[w].body, works[w].name);
        for (int k = 0; k < 3; k++) {
            rp_tensor *in[2] = {filled(k, works[w].rows, works[w].along, 0),
                                filled(20 + k, works[w].rows, works[w].along, k == 2)},
                      *out[2];
            check_call(f, works[w].body, in, out, 2);
            if (k == 1 || works[w].body == columns) continue;
            rp_tensor *grad[2][2];
            for (int i = 0; i < 2; i++) rp_set_requires_grad(in[i], true);
            for (int i = 0; i < 2; i++) {
                if (i)
                    (void)rp_call(f, in, 2, out, 2);
                else
                    works[w].body(NULL, in, 2, out, 2);
                rp_tensor *loss = rp_add(rp_sum(rp_to_dtype(rp_mul(out[0], out[0]), RP_F32)),
                                         rp_sum(rp_to_dtype(rp_mul(out[1], out[1]), RP_F32)));
                (void)rp_grad(&loss, 1, in, 2, NULL, NULL, grad[i]);
                show_error();
            }
            for (int i = 0; i < 2; i++) assert_same(grad[0][i], grad[1][i]);
        }
        rp_compiled_release(f);
        rp_scope_end(scope, NULL, 0);
    }
}

static void test_training(void **state) { /* forward and backward, gradients kept */
    (void)state;
    rp_compiled *f = compiled(product, "product");
    rp_tensor *kept[4], *expected[4];
    rp_tensor *w = filled(1, K, N, 0);
    assert_int_equal(rp_set_requires_grad(w, true), RP_OK);
    for (int k = 0; k < 4; k++) {
        rp_tensor *in[] = {filled(30 + k, M, K, 0), w}, *out[2];
        for (int compiled_too = 0; compiled_too < 2; compiled_too++) {
            if (compiled_too)
                (void)rp_call(f, in, 2, out, 2);
            else
                product(NULL, in, 2, out, 2);
            rp_tensor *loss = rp_sum(out[1]);
            (void)rp_grad(&loss, 1, &w, 1, NULL, NULL, compiled_too ? &kept[k] : &expected[k]);
            show_error();
        }
    }
    for (int k = 0; k < 4; k++) assert_same(expected[k], kept[k]);
    rp_compiled_release(f);
}

static void mlp(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_matmul(rp_relu(rp_matmul(in[0], in[1])), in[1]);
}
static void test_relu(void **state) { /* by our own kernel, and by cuBLASLt, whose relu is not used */
    (void)state;
    for (int large = 0; large < 2; large++) {
        int64_t n = large ? M : 24;
        rp_compiled *f = compiled(mlp, "mlp");
        rp_tensor *w = filled(1, n, n, 0), *out[1];
        for (int k = 0; k < 3; k++) {
            rp_tensor *in[] = {rp_sqrt(filled(k, n, n, 0)), w}; /* NaNs */
            check_call(f, mlp, in, out, 1);
        }
        rp_compiled_release(f);
    }
}

/* ---- chains of products */

static int64_t launches(rp_compiled *f, const char *ops) { /* library launches of these ops */
    int64_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, "library") == 0 && strncmp(e.message, ops, strlen(ops)) == 0 &&
            e.message[strlen(ops)] == ':')
            n += e.count;
    }
    return n;
}

struct net {
    rp_tensor *w[3], *b[3];
};
static void layers(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct net *n = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_relu(rp_linear(in[0], n->w[0], n->b[0]));
    out[0] = rp_linear(rp_relu(rp_linear(h, n->w[1], NULL)), n->w[2], n->b[2]);
}
static void layers_and_hidden(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct net *n = ctx;
    (void)n_in, (void)n_out;
    out[1] = rp_relu(rp_linear(in[0], n->w[0], n->b[0]));
    out[0] = rp_linear(out[1], n->w[1], NULL);
}
static void its_own_weight(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct net *n = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_linear(in[0], n->w[0], n->b[0]);
    out[0] = rp_linear(h, rp_exp(rp_mul_scalar(rp_matmul(n->w[1], h), rp_f64(1e-3))), NULL);
}

static rp_tensor *uniform(rp_dtype dtype, int seed, int64_t rows, int64_t columns) {
    rp_tensor *t = rp_mul_scalar(filled(seed, rows, columns, 0), rp_f64(0.125));
    return rp_to_dtype(rows == 1 ? rp_view(t, RP_DIMS(columns)) : t, dtype);
}

/* rows of inputs: 0: a vector. Moves the input at each call. */
static void check_net(rp_body *body, rp_dtype dtype, int64_t rows, size_t n_out, const char *ops, int64_t count) {
    struct net net;
    static const int64_t width[] = {10, 64, 32, 10};
    bool product = body == its_own_weight;
    for (int k = 0; k < 3; k++) {
        net.w[k] = uniform(dtype, k + 1, width[k + 1], product && k == 1 ? 64 : width[k]);
        net.b[k] = uniform(dtype, k + 7, 1, width[k + 1]);
    }
    rp_compiled *f =
        rp_compile((rp_fn){body, &net, sizeof net, "net"}, RP_OPTIONS(rp_compile_options, .backend = "fused"));
    show_error();
    for (int k = 0; k < 4; k++) {
        rp_tensor *in[] = {uniform(dtype, 20 + k, rows ? rows : 1, 10)}, *out[2], *expected[2];
        body(&net, in, 1, expected, n_out);
        (void)rp_call(f, in, 1, out, n_out);
        show_error();
        for (size_t i = 0; i < n_out; i++) assert_same(expected[i], out[i]);
    }
    assert_int_equal(launches(f, ops), count);
    rp_compiled_release(f);
}

static void test_chain(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
    for (unsigned d = 0; d < 4; d++) {
        check_net(layers, dtypes[d], 0, 1, "linear+relu+linear+relu+linear", 1);
        check_net(layers, dtypes[d], 64, 1, "linear+relu+linear+relu+linear", 1);
        check_net(layers_and_hidden, dtypes[d], 7, 2, "linear+relu+linear", 1);
    }
    check_net(its_own_weight, RP_F32, 64, 1, "linear", 2); /* the second weight is made of the first product */
}

/* What each stage's kernel does otherwise under FAST is told of the chain, as the sum of its stages. */
static void curved(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] =
        rp_sigmoid(rp_linear(rp_tanh(rp_linear(rp_tanh(rp_linear(in[0], in[1], NULL)), in[1], NULL)), in[1], NULL));
}
static int64_t told_freedoms(rp_compiled *f, const char *reason, const char *ops) {
    int64_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, "numbers") == 0 && strcmp(e.reason, reason) == 0 &&
            strncmp(e.message, ops, strlen(ops)) == 0)
            n += e.count;
    }
    return n;
}
static void test_chain_freedoms(void **state) {
    (void)state;
    for (int fast = 0; fast < 2; fast++) {
        rp_compiled *f = rp_compile(
            (rp_fn){curved, NULL, 0, "curved"},
            RP_OPTIONS(rp_compile_options, .backend = "fused", .numbers = fast ? RP_NUMBERS_FAST : RP_NUMBERS_DEFAULT));
        rp_tensor *in[2] = {filled(1, 16, 16, 0), rp_mul_scalar(filled(2, 16, 16, 0), rp_f64(0.125))}, *out;
        for (int k = 0; k < 2; k++) {
            (void)rp_call(f, in, 2, &out, 1);
            show_error();
        }
        assert_int_equal(launches(f, "linear+tanh+linear+tanh+linear+sigmoid"), 1);
        assert_int_equal(told_freedoms(f, "fast-functions", "linear+tanh+linear+tanh+linear+sigmoid: "), fast ? 3 : 0);
        assert_int_equal(told_freedoms(f, "fast-functions", ""), fast ? 3 : 0);
        rp_compiled_release(f);
    }
}

static void test_chain_training(void **state) { /* the rows that the backward needs are stored by the chain */
    (void)state;
    struct net net;
    static const int64_t width[] = {10, 64, 32, 10};
    for (int k = 0; k < 3; k++) {
        net.w[k] = uniform(RP_F32, k + 1, width[k + 1], width[k]);
        net.b[k] = uniform(RP_F32, k + 7, 1, width[k + 1]);
        assert_int_equal(rp_set_requires_grad(net.w[k], true), RP_OK);
        assert_int_equal(rp_set_requires_grad(net.b[k], true), RP_OK);
    }
    rp_compiled *f =
        rp_compile((rp_fn){layers, &net, sizeof net, "net"}, RP_OPTIONS(rp_compile_options, .backend = "fused"));
    show_error();
    rp_tensor *leaves[] = {net.w[0], net.b[0], net.w[1], net.w[2], net.b[2]};
    enum { LEAVES = sizeof leaves / sizeof *leaves };
    for (int k = 0; k < 4; k++) {
        rp_tensor *in[] = {uniform(RP_F32, 20 + k, 16, 10)}, *out[2], *grad[2][LEAVES];
        layers(&net, in, 1, &out[0], 1);
        (void)rp_call(f, in, 1, &out[1], 1);
        show_error();
        assert_same(out[0], out[1]);
        for (int i = 0; i < 2; i++) {
            rp_tensor *loss = rp_sum(rp_tanh(out[i]));
            (void)rp_grad(&loss, 1, leaves, LEAVES, NULL, NULL, grad[i]);
            show_error();
        }
        for (int i = 0; i < LEAVES; i++) assert_same(grad[0][i], grad[1][i]);
    }
    assert_int_equal(launches(f, "linear+relu+linear+relu+linear"), 1);
    /* and so are the products that the gradients go back through */
    assert_int_equal(launches(f, "linear+eq_scalar+full+where+linear+eq_scalar+full+where"), 1);
    rp_compiled_release(f);
}

/* Stages drawn by a seed: weights as they are or turned, in rows that lie apart; what follows a sum; whether it is a result. */
enum { STAGES_MOST = 5 };
struct drawn {
    unsigned n, turned, follows[STAGES_MOST], wanted;
};
/* Arguments: x, then a stage's weight, a row, a matrix as large as its result. */
static void stages(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct drawn *d = ctx;
    rp_tensor *x = in[0];
    size_t results = 0;
    (void)n_in;
    for (unsigned s = 0; s < d->n; s++) {
        rp_tensor *const *a = in + 1 + 3 * s;
        rp_tensor *y = d->turned >> s & 1 ? rp_linear(x, a[0], d->follows[s] & 1 ? a[1] : NULL) : rp_matmul(x, a[0]);
        if (d->follows[s] & 2) y = rp_add(y, a[2]);
        switch (d->follows[s] >> 2 & 7) {
        case 0: break;
        case 1: y = rp_relu(y); break;
        case 2: y = rp_tanh(y); break;
        case 3: y = rp_mul(y, rp_sigmoid(y)); break;
        case 4: y = rp_clamp(y, rp_f64(-0.25), rp_f64(0.5)); break;
        case 5: y = rp_mul(y, rp_to_dtype(rp_gt_scalar(a[2], rp_f64(0)), rp_dtype_of(y))); break; /* relu's gradient */
        case 6: y = rp_sub(rp_mul(y, a[1]), rp_mul_scalar(a[2], rp_f64(0.5))); break;
        default: y = rp_where(rp_gt(y, a[2]), y, rp_mul_scalar(y, rp_f64(0.125)));
        }
        if (d->wanted >> s & 1 && results + 1 < n_out) out[results++] = y;
        x = y;
    }
    while (results < n_out) out[results++] = x;
}

static uint32_t draw_number(uint64_t *seed, uint32_t below) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33) % below;
}

/* rows x columns of a wider matrix, or turned, whose columns lie apart. */
static rp_tensor *lies_apart(rp_dtype dtype, uint64_t *seed, int64_t rows, int64_t columns, bool turned) {
    const int64_t gap = draw_number(seed, 3);
    rp_tensor *t = rp_mul_scalar(filled((int)draw_number(seed, 1000), turned ? columns : rows,
                                        (turned ? rows : columns) + gap, draw_number(seed, 2)),
                                 rp_f64(0.125));
    t = rp_slice(rp_to_dtype(t, dtype), 1, 0, turned ? rows : columns, 1);
    return turned ? rp_transpose(t, 0, 1) : t;
}

static void test_chain_drawn(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
    static const int64_t rows[] = {1, 2, 7, 33, 64, 300};
    for (uint64_t k = 0; k < 40; k++) {
        uint64_t seed = k;
        struct drawn d = {.n = 2 + draw_number(&seed, STAGES_MOST - 1), .turned = draw_number(&seed, 32)};
        const rp_dtype dtype = dtypes[draw_number(&seed, 4)];
        const int64_t m = rows[draw_number(&seed, 6)];
        int64_t width[STAGES_MOST + 1];
        for (unsigned s = 0; s <= d.n; s++) width[s] = 1 + draw_number(&seed, draw_number(&seed, 2) ? 48 : 8);
        for (unsigned s = 0; s < d.n; s++) d.follows[s] = draw_number(&seed, 32);
        d.wanted = draw_number(&seed, 8);
        rp_compiled *f =
            rp_compile((rp_fn){stages, &d, sizeof d, "stages"}, RP_OPTIONS(rp_compile_options, .backend = "fused"));
        const uint64_t layout = seed; /* the same at each call, in other memory */
        for (int call = 0; call < 3; call++) {
            rp_scope scope = rp_scope_begin();
            rp_tensor *in[1 + 3 * STAGES_MOST], *out[3], *expected[3];
            seed = layout;
            in[0] = lies_apart(dtype, &seed, m, width[0], false);
            for (unsigned s = 0; s < d.n; s++) {
                const bool linear = d.turned >> s & 1;
                in[1 + 3 * s] = lies_apart(dtype, &seed, width[s + !!linear], width[s + !linear], s & 1);
                in[2 + 3 * s] = rp_view(uniform(dtype, (int)s + 3, 1, width[s + 1]), RP_DIMS(width[s + 1]));
                in[3 + 3 * s] = lies_apart(dtype, &seed, m, width[s + 1], s & 2);
            }
            stages(&d, in, 1 + 3 * d.n, expected, 3);
            (void)rp_call(f, in, 1 + 3 * d.n, out, 3);
            show_error();
            for (unsigned i = 0; i < 3; i++) assert_same(expected[i], out[i]);
            rp_scope_end(scope, NULL, 0);
        }
        int64_t launched = 0;
        for (size_t i = 0; i < rp_explain_count(f); i++) {
            rp_explain_entry e;
            assert_int_equal(rp_explain_get(f, i, &e), RP_OK);
            launched += strcmp(e.kind, "library") == 0 || strcmp(e.kind, "kernel") == 0;
        }
        if (launched != 1) fail_msg("seed %d: %d launches", (int)k, (int)launched);
        rp_compiled_release(f);
    }
}

/* Rows and columns that are several dims, in other orders where they are stored; what does not come from the product, before it; in[0] to
   in[3] have sizes by which each is what it needs. */
enum { BEFORE, BATCH, COUNTED, TURNED_ROWS, TURNED_COLUMNS, TURNED_FOLDED, PLACES };
static void places(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int which = *(const int *)ctx;
    rp_tensor *e, *y;
    (void)n_in, (void)n_out;
    switch (which) {
    case BEFORE:
        e = rp_exp(in[3]);
        out[0] = rp_mul(rp_matmul(in[0], in[1]), e);
        break;
    case BATCH: out[0] = rp_linear(rp_relu(rp_linear(in[0], in[1], NULL)), in[2], NULL); break;
    case COUNTED:
        y = rp_relu(rp_linear(in[0], in[1], NULL));
        y = rp_add(y, rp_to_dtype(rp_arange(rp_i64(0), rp_i64(16)), RP_F32));
        out[0] = rp_linear(y, in[2], NULL);
        break;
    case TURNED_ROWS: out[0] = rp_add(in[3], rp_transpose(rp_linear(in[0], in[1], NULL), 0, 1)); break;
    case TURNED_COLUMNS:
        out[0] = rp_add(in[3], rp_transpose(rp_view(rp_matmul(in[0], in[1]), RP_DIMS(5, 4, 3)), 1, 2));
        break;
    default: out[0] = rp_add(in[3], rp_transpose(rp_view(rp_matmul(in[0], in[1]), RP_DIMS(6, 4, 9)), 0, 1));
    }
}

static rp_tensor *cube(int seed, int64_t a, int64_t b, int64_t c) {
    return rp_view(filled(seed, a * b, c, 0), RP_DIMS(a, b, c));
}

static void test_chain_places(void **state) {
    (void)state;
    for (int which = 0; which < PLACES; which++) {
        rp_compiled *f = rp_compile((rp_fn){places, &which, sizeof which, "places"},
                                    RP_OPTIONS(rp_compile_options, .backend = "fused"));
        for (int k = 0; k < 3; k++) {
            rp_tensor *in[4] = {cube(k, 4, 6, 8), filled(k + 1, 16, 8, 0), filled(k + 2, 8, 16, 0), filled(k, 8, 8, 0)},
                      *out, *expected;
            if (which == BEFORE) in[0] = filled(k + 3, 8, 8, 0), in[1] = filled(k + 4, 8, 8, 0);
            if (which == TURNED_ROWS) in[3] = cube(k, 6, 4, 16);
            if (which == TURNED_COLUMNS)
                in[0] = filled(k, 5, 7, 0), in[1] = filled(k, 7, 12, 0), in[3] = cube(k, 5, 3, 4);
            if (which == TURNED_FOLDED)
                in[0] = filled(k, 24, 7, 0), in[1] = filled(k, 7, 9, 0), in[3] = cube(k, 4, 6, 9);
            places(&which, in, 4, &expected, 1);
            (void)rp_call(f, in, 4, &out, 1);
            show_error();
            assert_same(expected, out);
        }
        assert_int_equal(fact(f, "kernel", ""),
                         which == BEFORE ? 1 : -1); /* chains but for the first, whose loop is no stage's */
        rp_compiled_release(f);
    }
}

/* A view that splits the product's columns at one size, and none of its dims at another. */
static void split(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    const int64_t size[2] = {rp_sym_size(in[2], 0), rp_sym_size(in[2], 1)};
    out[0] = rp_add(rp_view(rp_linear(in[0], in[1], NULL), size, 2), in[2]);
}
static void test_chain_sizes(void **state) {
    (void)state;
    static const int64_t size[][2] = {{12, 2}, {8, 3}, {3, 8}, {2, 12}, {6, 4}, {4, 6}};
    rp_compiled *f = compiled(split, "split");
    for (size_t k = 0; k < sizeof size / sizeof *size; k++) {
        rp_tensor *in[3] = {filled((int)k, 4, 5, 0), filled(1, 6, 5, 0), filled(2, size[k][0], size[k][1], 0)}, *out,
                  *expected;
        split(NULL, in, 3, &expected, 1);
        (void)rp_call(f, in, 3, &out, 1);
        show_error();
        assert_same(expected, out);
    }
    rp_compiled_release(f);
}

static void test_chain_refused(void **state) {
    (void)state;
    rp_compiled *f = compiled(mlp, "mlp");
    rp_tensor *w = filled(1, 128, 128, 0), *out[1]; /* twice 64 KB of weights */
    for (int k = 0; k < 2; k++) {
        rp_tensor *in[] = {filled(k, 4, 128, 0), w};
        check_call(f, mlp, in, out, 1);
    }
    assert_int_equal(fact(f, "unfused", "products-too-large"), 1);
    rp_compiled_release(f);
}

static int start(void **state) {
    (void)state;
    (void)rp_error_take();
    return rp_set_default_device(rp_cuda(0)) == RP_OK ? 0 : -1;
}

/* Branches and loops are conditional nodes of the program's graph: nothing waits for the device between its parts. */
static void test_regions(void **state) {
    (void)state;
    for (size_t k = 0; k < RC_CASES; k++) {
        for (int no_graph = 0; no_graph < 2; no_graph++) {
            rp_scope s = rp_scope_begin();
            rp_compiled *f = rc_check(&rc_cases[k], RP_OPTIONS(rp_compile_options, .backend = "fused",
                                                               .fullgraph = true, .no_graph = no_graph != 0));
            assert_int_equal(rc_told(f, "skip", ""), 0);
            assert_int_equal(rc_told(f, "region", no_graph ? "host" : "node of the device graph"), rc_cases[k].regions);
            rp_compiled_release(f);
            assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
            show_error();
        }
    }
}

/* A cat of two arguments that nothing else reads and of what a loop makes: the loop stores its part, one launch copies the others, also when
   arguments and results move; explain names the schedules. */
static void joined(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *const part[3] = {in[0], rp_softmax(in[2], 1), in[1]};
    out[0] = rp_cat(part, 3, 1);
}

static void test_joined(void **state) {
    (void)state;
    rp_compiled *f = compiled(joined, "joined");
    rp_tensor *kept = NULL;
    for (int call = 0; call < 4; call++) {
        rp_tensor *in[3] = {filled(call, 33, 12, 0), filled(call + 1, 33, 7, 0), filled(call + 2, 33, 40, 0)};
        rp_tensor *want, *got;
        joined(NULL, in, 3, &want, 1);
        assert_int_equal(rp_call(f, in, 3, &got, 1), RP_OK);
        assert_same(want, got);
        if (call == 1) kept = got;
    }
    assert_non_null(kept);
    int loops = 0, cats = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, "kernel") == 0) {
            assert_non_null(strstr(e.message, "softmax"));
            assert_non_null(strstr(e.message, "loop, schedule row"));
            loops++;
        }
        if (strcmp(e.kind, "library") == 0) cats += strncmp(e.message, "cat: ", 5) == 0;
    }
    assert_int_equal(loops, 1);
    assert_int_equal(cats, 1);
    rp_compiled_release(f);
}

/* Two layers in both directions: x, h (and c), then the weights of each. */
static void recurrent(rp_tensor *const *in, size_t n_in, bool lstm, rp_tensor **out) {
    if (lstm)
        out[0] = rp_lstm(in[0], in + 1, 2, in + 3, n_in - 3, true, 2, 0, false, true, true, &out[1], &out[2]);
    else
        out[0] = rp_gru(in[0], in[1], in + 2, n_in - 2, true, 2, 0, false, true, true, &out[1]);
}
static void lstm(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_out;
    recurrent(in, n_in, true, out);
}
static void gru(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_out;
    recurrent(in, n_in, false, out);
}

/* Recurrent layers are one launch each way, however long the sequence; bits of eager, also of gradients. After the second length the graph is
   one of all lengths. */
static void test_recurrent(void **state) {
    (void)state;
    enum { H = 20, C = 6, ROWS = 3, MOST = 3 + 16 };
    for (int kind = 0; kind < 2; kind++) {
        const int64_t gates = kind ? 4 : 3;
        const size_t states = kind ? 2 : 1, n_out = states + 1, n_in = 1 + states + 16;
        rp_body *body = kind ? lstm : gru;
        rp_compiled *f = compiled(body, "recurrent");
        rp_tensor *in[MOST];
        for (size_t k = 0; k < states; k++)
            in[1 + k] = rp_view(uniform(RP_F32, 3 + (int)k, 4 * ROWS, H), RP_DIMS(4, ROWS, H));
        for (int k = 0; k < 16; k++) {
            const int64_t columns = k % 4 == 1 ? H : k % 4 > 1 ? 1 : k < 8 ? C : 2 * H;
            rp_tensor *w = rp_mul_scalar(uniform(RP_F32, 5 + k, gates * H, columns), rp_f64(0.3));
            in[1 + states + (size_t)k] = columns == 1 ? rp_squeeze(w, 1) : w;
        }
        for (size_t k = 1; k < n_in; k++) {
            in[k] = rp_detach(in[k]);
            assert_int_equal(rp_set_requires_grad(in[k], true), RP_OK);
        }
        for (int call = 0; call < 4; call++) {
            const int64_t steps = call == 2 ? 9 : call == 3 ? 13 : 4;
            in[0] = rp_view(uniform(RP_F32, 40 + call, ROWS * steps, C), RP_DIMS(ROWS, steps, C));
            assert_int_equal(rp_set_requires_grad(in[0], true), RP_OK);
            rp_tensor *out[2][3], *grad[2][MOST];
            body(NULL, in, n_in, out[0], n_out);
            assert_int_equal(rp_call(f, in, n_in, out[1], n_out), RP_OK);
            for (size_t k = 0; k < n_out; k++) assert_same(out[0][k], out[1][k]);
            for (int i = 0; i < 2; i++) {
                rp_tensor *loss = rp_sum(rp_tanh(out[i][0]));
                for (size_t k = 1; k < n_out; k++) loss = rp_add(loss, rp_sum(rp_mul(out[i][k], out[i][k])));
                (void)rp_grad(&loss, 1, in, n_in, NULL, NULL, grad[i]);
                show_error();
            }
            for (size_t k = 0; k < n_in; k++) assert_same(grad[0][k], grad[1][k]);
            if (call != 1) continue;
            assert_int_equal(launches(f, "recur"), 4);
            assert_int_equal(launches(f, "recur_backward"), 4);
        }
        size_t graphs = 0;
        for (size_t k = 0; k < rp_explain_count(f); k++) {
            rp_explain_entry e;
            assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
            graphs += strcmp(e.kind, "specialisation") == 0;
        }
        assert_int_equal(graphs, 2);
        rp_compiled_release(f);
    }
}

int main(void) {
    if (!test_cuda_choose()) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_gathered, start),        cmocka_unit_test_setup(test_line, start),
        cmocka_unit_test_setup(test_wrapping, start),        cmocka_unit_test_setup(test_part_read_again, start),
        cmocka_unit_test_setup(test_ordered, start),         cmocka_unit_test_setup(test_layout_told, start),
        cmocka_unit_test_setup(test_library_moved, start),   cmocka_unit_test_setup(test_library_results, start),
        cmocka_unit_test_setup(test_library_alone, start),   cmocka_unit_test_setup(test_library_steady, start),
        cmocka_unit_test_setup(test_library_written, start), cmocka_unit_test_setup(test_alignment, start),
        cmocka_unit_test_setup(test_weights_ahead, start),   cmocka_unit_test_setup(test_weights_beside, start),
        cmocka_unit_test_setup(test_moved_back, start),      cmocka_unit_test_setup(test_foreign, start),
        cmocka_unit_test_setup(test_training, start),        cmocka_unit_test_setup(test_relu, start),
        cmocka_unit_test_setup(test_regions, start),         cmocka_unit_test_setup(test_chain, start),
        cmocka_unit_test_setup(test_chain_freedoms, start),  cmocka_unit_test_setup(test_chain_training, start),
        cmocka_unit_test_setup(test_chain_refused, start),   cmocka_unit_test_setup(test_chain_drawn, start),
        cmocka_unit_test_setup(test_chain_places, start),    cmocka_unit_test_setup(test_chain_sizes, start),
        cmocka_unit_test_setup(test_joined, start),          cmocka_unit_test_setup(test_recurrent, start),
        cmocka_unit_test_setup(test_split_loops, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
