/* Batch normalisation beyond the op sweep: running statistics, one kernel for statistics, normalisation and what follows them,
   eager and compiled bit for bit, refused arguments.
   ctest: labels=compile */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

enum { N = 3, C = 2, L = 4, ALL = N * C * L };

typedef struct net {
    rp_tensor *weight, *bias, *mean, *var;
} net;
static net net_new(void) {
    static const float w[C] = {1.5f, -0.5f}, b[C] = {0.25f, 2}, m[C] = {0.5f, -1}, v[C] = {2, 0.75f};
    return (net){rp_from_data(w, RP_DIMS(C), RP_F32), rp_from_data(b, RP_DIMS(C), RP_F32),
                 rp_from_data(m, RP_DIMS(C), RP_F32), rp_from_data(v, RP_DIMS(C), RP_F32)};
}
static rp_tensor *image(void) {
    float x[ALL];
    for (int i = 0; i < ALL; i++) x[i] = (float)((i * 37) % 23) / 8 - 1;
    return rp_from_data(x, RP_DIMS(N, C, L), RP_F32);
}
static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *m = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_relu(rp_batch_norm(in[0], m->weight, m->bias, m->mean, m->var, true, 0.1, 1e-5));
}
static void values(rp_tensor *t, float *to, size_t n) { assert_int_equal(rp_to_host(t, to, n * sizeof *to), RP_OK); }

/* mean and unbiased variance of the batch, a tenth of each into the running ones. */
static void running_statistics(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    net m = net_new();
    rp_tensor *x = image(), *y;
    float before[2][C], after[2][C], data[ALL];
    values(m.mean, before[0], C);
    values(m.var, before[1], C);
    values(x, data, ALL);
    body(&m, &x, 1, &y, 1);
    assert_false(rp_failed());
    values(m.mean, after[0], C);
    values(m.var, after[1], C);
    for (int c = 0; c < C; c++) {
        double mean = 0, var = 0;
        for (int i = 0; i < ALL; i++) mean += i / L % C == c ? data[i] / (double)(N * L) : 0;
        for (int i = 0; i < ALL; i++)
            var += i / L % C == c ? (data[i] - mean) * (data[i] - mean) / (double)(N * L - 1) : 0;
        assert_true(fabs((double)after[0][c] - (0.9 * (double)before[0][c] + 0.1 * mean)) < 1e-6);
        assert_true(fabs((double)after[1][c] - (0.9 * (double)before[1][c] + 0.1 * var)) < 1e-6);
    }
    rp_tensor *fixed = rp_batch_norm(x, m.weight, m.bias, m.mean, m.var, false, 0.1, 1e-5);
    assert_false(rp_is_error(fixed));
    float again[C];
    values(m.mean, again, C);
    assert_memory_equal(again, after[0], sizeof again); /* evaluation writes nothing */
    rp_scope_end(scope, NULL, 0);
}

/* Statistics, normalisation, affine, relu and both running statistics are one launch, with eager's bits. */
static void one_kernel(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    net eager = net_new(), compiled = net_new();
    rp_tensor *x = image(), *want, *got;
    rp_fn fn = {body, &compiled, sizeof compiled, "bn"};
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    for (int call = 0; call < 3; call++) {
        body(&eager, &x, 1, &want, 1);
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        rp_tensor *pairs[][2] = {{want, got}, {eager.mean, compiled.mean}, {eager.var, compiled.var}};
        for (int k = 0; k < 3; k++) {
            float a[ALL], b[ALL];
            const size_t n = k ? C : ALL;
            values(pairs[k][0], a, n);
            values(pairs[k][1], b, n);
            assert_memory_equal(a, b, n * sizeof *a);
        }
    }
    unsigned kernels = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        kernels += strcmp(e.kind, "kernel") == 0;
    }
    assert_int_equal(kernels, 1);
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

static void refused(rp_tensor *t, const char *words) {
    assert_true(rp_is_error(t));
    if (!strstr(rp_error_message(), words)) fail_msg("%s", rp_error_message());
    (void)rp_error_take();
}
static void refusals(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = image(), *three = rp_ones(RP_DIMS(3)), *two = rp_ones(RP_DIMS(2));
    refused(rp_batch_norm(two, NULL, NULL, NULL, NULL, true, 0.1, 1e-5), "expected at least 2D input");
    refused(rp_batch_norm(x, three, NULL, NULL, NULL, true, 0.1, 1e-5), "weight should contain 2 elements");
    refused(rp_batch_norm(x, NULL, NULL, two, NULL, false, 0.1, 1e-5), "to be defined when training=False");
    refused(rp_batch_norm(rp_ones(RP_DIMS(1, 2)), NULL, NULL, NULL, NULL, true, 0.1, 1e-5),
            "more than 1 value per channel");
    rp_scope_end(scope, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(running_statistics),
        cmocka_unit_test(one_kernel),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
