/* Users' ops on the CUDA device: the source that rp_op_register was given, eager, differentiated, compiled, captured, with moved
   arguments, and what is wrong with one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "support/cuda.h"

enum { N = 1000 };

/* ---- the ops */

static const char *const square_source =
    "extern \"C\" __global__ void square(const float *x, float *y, long long n) {\n"
    "    long long i = blockIdx.x * 256LL + threadIdx.x;\n"
    "    if (i < n) y[i] = x[i] * x[i];\n"
    "}\n";

static rp_status square_backward(void *ctx, rp_tensor *const *grad_out, size_t n_out, rp_tensor *const *in, size_t n_in,
                                 rp_tensor *const *out, const rp_attr *attrs, size_t n_attrs, rp_tensor **grad_in) {
    (void)ctx, (void)n_out, (void)n_in, (void)out, (void)attrs, (void)n_attrs;
    grad_in[0] = rp_mul(grad_out[0], rp_add(in[0], in[0]));
    return rp_failed() ? rp_error_status() : RP_OK;
}

/* Every kind of attribute and an optional tensor; two results of two types; four elements a thread. */
static const char *const mixed_source =
    "extern \"C\" __global__ void mixed(const float *x, const float *w, float *y, long long *z, long long n,\n"
    "                                   long long a, double b, bool c, int d, double e) {\n"
    "    long long i = blockIdx.x * 1024LL + threadIdx.x;\n"
    "    for (int k = 0; k < 4; k++, i += 256) {\n"
    "        if (i >= n) continue;\n"
    "        y[i] = (float)(x[i] * b + e) + (w ? w[i] : 0.0f);\n"
    "        z[i] = i * a + (c ? 1 : 0) + d * 100;\n"
    "    }\n"
    "}\n";

static rp_status mixed_infer(void *ctx, rp_tensor *const *in, size_t n_in, const rp_attr *attrs, size_t n_attrs,
                             size_t k, int64_t *size, size_t *ndim, rp_dtype *dtype) {
    (void)ctx, (void)n_in, (void)attrs, (void)n_attrs;
    *ndim = rp_ndim(in[0]);
    for (size_t i = 0; i < *ndim; i++) size[i] = rp_size(in[0], (int64_t)i);
    *dtype = k == 0 ? RP_F32 : RP_I64;
    return RP_OK;
}

/* The second result is not empty when the first is. */
static rp_status lopsided_infer(void *ctx, rp_tensor *const *in, size_t n_in, const rp_attr *attrs, size_t n_attrs,
                                size_t k, int64_t *size, size_t *ndim, rp_dtype *dtype) {
    (void)ctx, (void)in, (void)n_in, (void)attrs, (void)n_attrs;
    *ndim = 1;
    size[0] = (int64_t)k;
    *dtype = RP_F32;
    return RP_OK;
}

static void register_ops(void) {
    assert_int_equal(
        rp_op_register(RP_OPTIONS(rp_op_descriptor, .schema = "cu_square(Tensor self) -> Tensor",
                                  .cuda_source = square_source, .cuda_entry = "square", .backward = square_backward)),
        RP_OK);
    assert_int_equal(rp_op_register(RP_OPTIONS(
                         rp_op_descriptor, .infer = mixed_infer,
                         .schema = "cu_mixed(Tensor self, Tensor? w, int a, float b, bool c, dtype d, Scalar e) -> "
                                   "(Tensor, Tensor)",
                         .cuda_source = mixed_source, .cuda_entry = "mixed", .cuda_elements_per_block = 1024)),
                     RP_OK);
}

static rp_tensor *call1(const char *name, rp_tensor *x) {
    rp_tensor *out = NULL;
    (void)rp_op_call(name, &x, 1, NULL, 0, &out, 1);
    return out;
}

/* ---- help */

static void show_error(void) {
    if (rp_failed()) fail_msg("%s", rp_error_message());
}

static rp_tensor *numbers(int64_t seed) {
    return rp_add_scalar(rp_arange(rp_i64(0), rp_i64(N), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)),
                         rp_i64(seed));
}

/* Is element i of t equal to (i + seed)^2 + plus? Squares below 2^24 are exact. */
static void assert_squares(rp_tensor *t, int64_t seed, float plus) {
    float got[N];
    show_error();
    assert_int_equal(rp_to_host(t, got, sizeof got), RP_OK);
    for (int i = 0; i < N; i++) {
        float x = (float)(i + seed), expected = x * x + plus;
        if (got[i] != expected) fail_msg("element %d is %g, not %g", i, (double)got[i], (double)expected);
    }
}

static void assert_error(rp_status status, const char *part) {
    if (!strstr(rp_error_message(), part)) fail_msg("'%s' is not in: %s", part, rp_error_message());
    assert_int_equal(rp_error_take(), status);
}

static int start(void **state) {
    (void)state;
    (void)rp_error_take();
    return rp_set_default_device(rp_cuda(0)) == RP_OK ? 0 : -1;
}

/* ---- tests */

/* First: nobody has asked for the kernel yet, so it is compiled and loaded while the stream captures. */
static void test_captured(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    register_ops();
    rp_tensor *x = numbers(1), *y;
    rp_graph *g = rp_graph_new();
    assert_int_equal(rp_synchronize(rp_cuda(0)), RP_OK);
    assert_int_equal(rp_graph_begin(g, rp_cuda(0), NULL), RP_OK);
    y = rp_add_scalar(call1("cu_square", x), rp_i64(1));
    assert_int_equal(rp_graph_end(g), RP_OK);
    for (int64_t k = 1; k < 4; k++) {
        assert_int_equal(rp_graph_replay(g), RP_OK);
        assert_squares(y, k, 1);
        rp_add_scalar_(x, rp_i64(1));
    }
    rp_graph_release(g);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_eager(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    assert_squares(call1("cu_square", numbers(0)), 0, 0);
    float got[6];
    rp_tensor *x =
        rp_transpose(rp_view(rp_arange(rp_i64(0), rp_i64(6), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)),
                             RP_DIMS(2, 3)),
                     0, 1);
    assert_int_equal(rp_to_host(call1("cu_square", x), got, sizeof got), RP_OK);
    for (int i = 0; i < 6; i++) assert_true(got[i] == (float)((i % 2 * 3 + i / 2) * (i % 2 * 3 + i / 2)));
    assert_int_equal(rp_numel(call1("cu_square", rp_zeros(RP_DIMS(0, 3)))), 0); /* no launch */
    assert_true(rp_item_f64(call1("cu_square",
                                  rp_full(RP_NO_DIMS, rp_i64(3), RP_OPTIONS(rp_full_options, .dtype = RP_F32)))) == 9);
    show_error();
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_attributes(void **state) {
    (void)state;
    const rp_attr attrs[] = {{.kind = RP_ATTR_INT, .v.i = INT64_C(1) << 40},
                             {.kind = RP_ATTR_FLOAT, .v.f = 0.5},
                             {.kind = RP_ATTR_BOOL, .v.b = true},
                             {.kind = RP_ATTR_DTYPE, .v.dtype = RP_I32},
                             {.kind = RP_ATTR_SCALAR, .v.scalar = {RP_SCALAR_I64, {.i = 7}}}};
    static float y[2 * N];
    static int64_t z[2 * N];
    for (int with = 0; with < 2; with++) { /* the optional tensor */
        rp_scope s = rp_scope_begin();
        rp_tensor *x = rp_cat(RP_TENSORS(numbers(0), numbers(N)), 0), *in[] = {x, with ? x : NULL}, *out[2];
        assert_int_equal(rp_op_call("cu_mixed", in, 2, attrs, 5, out, 2), RP_OK);
        assert_int_equal(rp_to_host(out[0], y, sizeof y), RP_OK);
        assert_int_equal(rp_to_host(out[1], z, sizeof z), RP_OK);
        for (int i = 0; i < 2 * N; i++) {
            assert_true(y[i] == (float)(i * 0.5 + 7) + (with ? (float)i : 0));
            assert_true(z[i] == ((int64_t)i << 40) + 1 + RP_I32 * 100);
        }
        assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    }
}

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add_scalar(call1("cu_square", rp_neg(in[0])), rp_i64(2));
}

static void
test_compiled(void **state) { /* each call's argument lies elsewhere, and older results stay what they were */
    (void)state;
    enum { ROUNDS = 6 };
    rp_scope s = rp_scope_begin();
    rp_compiled *f = rp_compile((rp_fn){body, NULL, 0, "body"},
                                RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    rp_tensor *in[ROUNDS], *out[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) {
        in[k] = numbers(k);
        assert_int_equal(rp_call(f, &in[k], 1, &out[k], 1), RP_OK);
    }
    for (int k = 0; k < ROUNDS; k++) assert_squares(out[k], k, 2);
    for (size_t k = 0; k < rp_explain_count(f); k++) { /* it is one program: nothing was skipped */
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, "skip") == 0 || strcmp(e.kind, "break") == 0) fail_msg("%s: %s", e.kind, e.message);
    }
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_backward(void **state) {
    (void)state;
    for (int compiled = 0; compiled < 2; compiled++) {
        rp_scope s = rp_scope_begin();
        rp_compiled *f = rp_compile((rp_fn){body, NULL, 0, "body"}, RP_OPTIONS(rp_compile_options, .backend = "fused"));
        for (int k = 0; k < 4; k++) {
            float grad[N];
            rp_tensor *x = numbers(k), *y = NULL;
            rp_set_requires_grad(x, true);
            if (compiled)
                (void)rp_call(f, &x, 1, &y, 1);
            else
                body(NULL, &x, 1, &y, 1);
            assert_squares(y, k, 2);
            assert_int_equal(rp_backward(rp_sum(y), NULL, NULL), RP_OK);
            assert_int_equal(rp_to_host(rp_grad_of(x), grad, sizeof grad), RP_OK);
            for (int i = 0; i < N; i++) assert_true(grad[i] == 2.0f * (float)(i + k));
        }
        rp_compiled_release(f);
        assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    }
}

/* ---- what is wrong with a source */

static void expect_broken(const char *schema, const char *source, const char *entry, const char *part) {
    char name[32];
    rp_scope s = rp_scope_begin();
    rp_tensor *x = numbers(0), *out;
    assert_int_equal(
        rp_op_register(RP_OPTIONS(rp_op_descriptor, .schema = schema, .cuda_source = source, .cuda_entry = entry)),
        RP_OK);
    const size_t length = strcspn(schema, "(");
    memcpy(name, schema, length);
    name[length] = 0;
    for (int again = 0; again < 2; again++) { /* not only the first time */
        assert_int_equal(rp_op_call(name, &x, 1, NULL, 0, &out, 1), RP_ERROR_COMPILE);
        assert_true(rp_is_error(out));
        assert_non_null(strstr(rp_error_message(), name));
        assert_error(RP_ERROR_COMPILE, part);
    }
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

static void test_broken(void **state) {
    (void)state;
    expect_broken(
        "cu_bad(Tensor self) -> Tensor",
        "extern \"C\" __global__ void k(const float *x, float *y, long long n) {\n    y[0] = absent_thing;\n}\n", "k",
        "absent_thing");
    expect_broken(
        "cu_line(Tensor self) -> Tensor",
        "extern \"C\" __global__ void k(const float *x, float *y, long long n) {\n    y[0] = absent_thing;\n}\n", "k",
        test_cuda_is_real() ? "cu_line(2)" : "cu_line:2"); /* the user's line, not one behind the prelude */
    expect_broken("cu_entry(Tensor self) -> Tensor", square_source, "cube", "no extern \"C\" __global__ function cube");
    expect_broken("cu_few(Tensor self) -> Tensor",
                  "extern \"C\" __global__ void k(const float *x, float *y) { y[0] = x[0]; }\n", "k",
                  "has 2 parameters where the schema makes it 3");
    expect_broken("cu_many(Tensor self) -> Tensor",
                  "extern \"C\" __global__ void k(const float *x, float *y, long long n, int m) { y[0] = x[m]; }\n",
                  "k", "more parameters than the 3");
    expect_broken(
        "cu_narrow(Tensor self, float f=1.0) -> Tensor",
        "extern \"C\" __global__ void k(const float *x, float *y, long long n, float f) { y[0] = x[0] * f; }\n", "k",
        "parameter 3 of the CUDA kernel k has 4 bytes where the schema makes it 8");
}

static void expect_refused(const rp_op_descriptor *d, const char *part) {
    assert_int_equal(rp_op_register(d), RP_ERROR_INVALID_ARGUMENT);
    assert_error(RP_ERROR_INVALID_ARGUMENT, part);
}

static void test_refused(void **state) {
    (void)state;
    rp_op_descriptor d = {
        .struct_size = sizeof d, .schema = "cu_r(Tensor self) -> Tensor", .cuda_source = square_source};
    expect_refused(&d, "without cuda_entry");
    d.cuda_entry = "square";
    d.cuda_elements_per_block = -1;
    expect_refused(&d, "cuda_elements_per_block is -1");
    d.cuda_elements_per_block = 0;
    static const char *const schemas[] = {"cu_r(Tensor[] x) -> Tensor", "cu_r(Tensor self, int[] d) -> Tensor",
                                          "cu_r(Tensor self, str mode=None) -> Tensor",
                                          "cu_r(Tensor self, Generator? g=None) -> Tensor"};
    d.infer = mixed_infer;
    for (size_t k = 0; k < sizeof schemas / sizeof *schemas; k++) {
        d.schema = schemas[k];
        expect_refused(&d, "takes tensors and numbers");
    }
}

static void test_calls_refused(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *out[2], *empty = rp_zeros(RP_DIMS(0)), *on_cuda = numbers(0);
    rp_op_descriptor d = {.struct_size = sizeof d,
                          .schema = "cu_lopsided(Tensor self) -> (Tensor, Tensor)",
                          .infer = lopsided_infer,
                          .cuda_source = square_source,
                          .cuda_entry = "square"};
    assert_int_equal(rp_op_register(&d), RP_OK);
    assert_int_equal(rp_op_call("cu_lopsided", &empty, 1, NULL, 0, out, 2), RP_ERROR_SHAPE);
    assert_error(RP_ERROR_SHAPE, "result 0 is empty and result 1 is not");
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
    rp_tensor *number = rp_full(RP_NO_DIMS, rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32)),
              *in[] = {on_cuda, number};
    assert_int_equal(rp_op_call("cu_square", &number, 1, NULL, 0, out, 1), RP_ERROR_UNAVAILABLE);
    assert_error(RP_ERROR_UNAVAILABLE, "the op has no CPU function");
    const rp_attr attrs[] = {{.kind = RP_ATTR_INT},
                             {.kind = RP_ATTR_FLOAT},
                             {.kind = RP_ATTR_BOOL},
                             {.kind = RP_ATTR_DTYPE, .v.dtype = RP_F32},
                             {.kind = RP_ATTR_SCALAR, .v.scalar = {RP_SCALAR_I64, {0}}}};
    assert_int_equal(rp_op_call("cu_mixed", in, 2, attrs, 5, out, 2), RP_ERROR_DEVICE); /* a kernel reads addresses */
    assert_error(RP_ERROR_DEVICE, "same device");
    assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
}

int main(void) {
    if (!test_cuda_choose()) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_captured, start),   cmocka_unit_test_setup(test_eager, start),
        cmocka_unit_test_setup(test_attributes, start), cmocka_unit_test_setup(test_compiled, start),
        cmocka_unit_test_setup(test_backward, start),   cmocka_unit_test_setup(test_broken, start),
        cmocka_unit_test_setup(test_refused, start),    cmocka_unit_test_setup(test_calls_refused, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
