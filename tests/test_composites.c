/* Ops that are calls of others, where samples do not go: NaN, infinities, what is empty, whole numbers that no float holds. Expected
   numbers are those of PyTorch 2.15. ctest: timeout=60 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include <reprise.h>

#define FLOATS(...) (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__}) / sizeof(float)

static rp_tensor *floats(const float *v, size_t n) { return rp_from_data(v, RP_DIMS((int64_t)n), RP_F32); }
static rp_tensor *ints(const int64_t *v, size_t n) { return rp_from_data(v, RP_DIMS((int64_t)n), RP_I64); }
#define INTS(...) ints((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void no_errors(int line) {
    if (rp_failed()) fail_msg("line %d: %s", line, rp_error_message());
}

/* NaN is NaN; everything else to the last digits. */
static void is(rp_tensor *t, const float *want, size_t n, int line) {
    double got[64];
    assert_true(n <= 64);
    no_errors(line);
    if (rp_numel(t) != (int64_t)n) fail_msg("line %d: %lld elements", line, (long long)rp_numel(t));
    assert_int_equal(rp_to_host(rp_contiguous(rp_to_dtype(rp_detach(t), RP_F64)), got, n * sizeof *got), RP_OK);
    for (size_t i = 0; i < n; i++) {
        const double w = (double)want[i];
        if (isnan(w) ? !isnan(got[i]) : !(got[i] == w || fabs(got[i] - w) <= 1e-6 * fabs(w)))
            fail_msg("line %d, %zu: %.9g, not %.9g", line, i, got[i], w);
    }
}
#define IS(t, ...) is(t, FLOATS(__VA_ARGS__), __LINE__)
#define REFUSED(t, kind) ((void)(t), assert_int_equal(rp_error_take(), kind))

static rp_tensor *slope(rp_tensor *y, rp_tensor *x) {
    rp_tensor *grad = NULL, *sum = rp_sum(y);
    rp_grad(&sum, 1, &x, 1, NULL, NULL, &grad);
    return grad;
}
static rp_tensor *leaf(rp_tensor *x) {
    rp_set_requires_grad(x, true);
    return x;
}

#define SEGMENTS(...) RP_OPTIONS(rp_segment_reduce_options, __VA_ARGS__)

static void segments_at_nan(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = leaf(floats(FLOATS(1, NAN, 3, 4))),
              *y = rp_segment_reduce(x, "max", SEGMENTS(.lengths = INTS(2, 0, 2)));
    IS(y, NAN, -INFINITY, 4);
    IS(slope(y, x), 0, 1, 0, 1);
    y = rp_segment_reduce(x, "min", SEGMENTS(.lengths = INTS(2, 0, 2)));
    IS(y, NAN, INFINITY, 3);
    IS(slope(y, x), 0, 1, 1, 0);
    y = rp_segment_reduce(x, "prod", SEGMENTS(.lengths = INTS(2, 0, 2)));
    IS(y, NAN, 1, 12);
    IS(slope(y, x), NAN, 1, 4, 3);
    x = leaf(floats(FLOATS(2, 2, NAN, NAN, 5)));
    y = rp_segment_reduce(x, "max", SEGMENTS(.lengths = INTS(2, 2, 1)));
    IS(y, 2, NAN, 5);
    IS(slope(y, x), 0.5f, 0.5f, 0.5f, 0.5f, 1);
    y = rp_segment_reduce(x, "prod", SEGMENTS(.lengths = INTS(2, 2, 1)));
    IS(y, 4, NAN, 5);
    IS(slope(y, x), 2, 2, NAN, NAN, 1);
    x = leaf(floats(FLOATS(0, NAN, 0, 2, 0, 0)));
    y = rp_segment_reduce(x, "prod", SEGMENTS(.lengths = INTS(2, 2, 2)));
    IS(y, NAN, 0, 0);
    IS(slope(y, x), NAN, 0, 2, 0, 0, 0);
    x = leaf(floats(FLOATS(3, 3, 1, 0, 0, 5))); /* a bound that is NaN is the result */
    for (int k = 0; k < 2; k++) {
        y = rp_segment_reduce(x, k ? "min" : "max", SEGMENTS(.lengths = INTS(3, 3), .initial = rp_f64(NAN)));
        IS(y, NAN, NAN);
        IS(slope(y, x), 0, 0, 0, 0, 0, 0);
    }
    y = rp_segment_reduce(x, "min", SEGMENTS(.lengths = INTS(3, 0, 3), .initial = rp_f64(2)));
    IS(y, 1, 2, 0);
    IS(slope(y, x), 0, 0, 1, 0.5f, 0.5f, 0);
    rp_scope_end(scope, NULL, 0);
}

static void slopes_of_whole_numbers(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *at = INTS(1700000000, 1700000001, 1700000002), *x = floats(FLOATS(1, 2, 4));
    IS(rp_gradient_x(x, at), 1, 1.5f, 2);
    IS(rp_gradient_x(x, at, RP_OPTIONS(rp_gradient_x_options, .edge_order = rp_i64(2))), 0.5f, 1.5f, 2.5f);
    const int64_t far = INT64_C(1) << 40;
    /* at the edges whole numbers are subtracted, between them their products with floats are */
    IS(rp_gradient_x(INTS(far, far + 1, far + 3), INTS(0, 1, 2)), 1, 0, 2);
    IS(rp_gradient_x(INTS(far, far + 1, far + 3), rp_from_data((double[]){0, 1, 2}, RP_DIMS(3), RP_F64)), 1, 1.5f, 2);
    REFUSED(rp_gradient_x(x, rp_to_dtype(x, RP_BOOL)), RP_ERROR_DTYPE);
    /* a step whose double is no int64 */
    rp_tensor *y = rp_gradient(x, RP_OPTIONS(rp_gradient_options, .spacing = rp_i64(INT64_C(1) << 62)));
    IS(rp_mul_scalar(y, rp_f64(0x1p62)), 1, 1.5f, 2);
    rp_scope_end(scope, NULL, 0);
}

static void nothing_has_a_gradient(void **state) {
    (void)state;
    static const char *const names[] = {"sum", "mean", "max", "min", "prod"};
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = leaf(rp_zeros(RP_DIMS(0, 2))), *y;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        y = rp_segment_reduce(x, names[k], SEGMENTS(.lengths = INTS(0, 0), .initial = rp_f64(1)));
        IS(y, 1, 1, 1, 1);
        assert_int_equal(rp_size(slope(y, x), 1), 2);
        no_errors(__LINE__);
    }
    x = leaf(rp_zeros(RP_DIMS(0, 3)));
    rp_tensor *index = INTS(0, 1), *mask = rp_zeros(RP_DIMS(2, 1), RP_OPTIONS(rp_zeros_options, .dtype = RP_BOOL));
    y = rp_unsafe_masked_index(x, mask, &index, 1, rp_f64(1.5));
    IS(y, 1.5f, 1.5f, 1.5f, 1.5f, 1.5f, 1.5f);
    assert_int_equal(rp_size(slope(y, x), 1), 3);
    no_errors(__LINE__);
    rp_scope_end(scope, NULL, 0);
}

static void probabilities_ignore_nothing(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_ones(RP_DIMS(3, 4)), *map = rp_ones(RP_DIMS(5, 4)), *parts = rp_full(RP_DIMS(3, 5), rp_f64(0.2));
    for (int64_t ignore = -100; ignore <= 2; ignore += 51)
        REFUSED(rp_linear_cross_entropy(x, map, parts,
                                        RP_OPTIONS(rp_linear_cross_entropy_options, .ignore_index = rp_i64(ignore))),
                RP_ERROR_INVALID_ARGUMENT);
    IS(rp_linear_cross_entropy(x, map, parts), logf(5));
    rp_scope_end(scope, NULL, 0);
}

/* What an FFT does not multiply reaches nothing. */
static void spectra_of_infinities(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    for (int whole = 0; whole < 2; whole++) {
        const rp_tristate one_sided = whole ? RP_FALSE : RP_TRUE;
        rp_tensor *x = floats(FLOATS(1, INFINITY, 2, 3)),
                  *y = rp_stft(x, 4, 4, 4, NULL, false, "reflect", false, one_sided, RP_UNSET, RP_UNSET);
        y = rp_select(y, -1, 1);
        IS(rp_slice(y, 0, 0, 3, 1), 0, -INFINITY, 0);
        y = rp_stft(rp_ones(RP_DIMS(8)), 4, 4, 4, NULL, false, "reflect", false, one_sided, RP_UNSET, RP_UNSET);
        y = rp_clone(y);
        rp_fill_(rp_select(rp_select(y, 0, 0), -1, 1), rp_f64(NAN));
        rp_fill_(rp_select(rp_select(y, 0, 2), -1, 1), rp_f64(INFINITY));
        rp_tensor *back = rp_istft(leaf(y), 4, 4, 4, NULL, false, false, one_sided, INT64_MIN, false);
        IS(back, 1, 1, 1, 1, 1, 1, 1, 1);
        rp_tensor *grad = rp_select(slope(back, y), -1, 1);
        IS(rp_select(grad, 0, 0), 0, 0);
        IS(rp_select(grad, 0, 2), 0, 0);
    }
    rp_scope_end(scope, NULL, 0);
}

static void windows_of_other_types(void **state) {
    (void)state;
    static const rp_dtype windows[] = {RP_F16, RP_BF16, RP_F32, RP_F64, RP_I64, RP_BOOL};
    rp_scope scope = rp_scope_begin();
    for (size_t k = 0; k < 2 * sizeof windows / sizeof *windows; k++) {
        const rp_dtype of = k % 2 ? RP_F64 : RP_F32, both = windows[k / 2] == RP_F64 ? RP_F64 : of;
        rp_tensor *x = rp_to_dtype(rp_arange(rp_i64(1), rp_i64(9)), of),
                  *window = rp_to_dtype(rp_ones(RP_DIMS(3)), windows[k / 2]), *y = rp_stft(x, 4, 2, 3, window);
        no_errors(__LINE__);
        assert_int_equal(rp_dtype_of(y), both);
        y = rp_istft(rp_to_dtype(y, of), 4, 2, 3, window);
        assert_int_equal(rp_dtype_of(y), both);
        IS(y, 1, 2, 3, 4, 5, 6, 7, 8);
    }
    rp_scope_end(scope, NULL, 0);
}

/* Powers of two that no float holds, of results that one does; rounded once. Exponents of 64 bits count by their low 32. */
static void scaled(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_ldexp(in[0], in[1]);
}
static void far_powers(void **state) {
    (void)state;
    static const struct {
        rp_dtype type;
        double x;
        int64_t exponent;
        double want;
    } cases[] = {
        {RP_F32, 0x1p-100, 200, 0x1p100},
        {RP_F32, 0x1p100, -200, 0x1p-100},
        {RP_F32, 0x1p-140, 200, 0x1p60},
        {RP_F32, 0, 2000, 0},
        {RP_F32, 1.5, 127, 0x1.8p127},
        {RP_F32, 1.5, 128, INFINITY},
        {RP_F32, 3, -1100, 0},
        {RP_F32, 0x1.8p0, -150, 0x1p-149},
        {RP_F32, 1, -150, 0},
        {RP_F32, 0x1.000002p0, -148, 0x1p-148},
        {RP_F32, INFINITY, -500, INFINITY},
        {RP_F32, NAN, 3, NAN},
        {RP_F64, 0x1p-100, 200, 0x1p100},
        {RP_F64, 0x1p-1000, 2000, 0x1p1000},
        {RP_F64, 0x1p1000, -2000, 0x1p-1000},
        {RP_F64, 0x1p-1074, 2097, 0x1p1023},
        {RP_F64, 0x1p1023, -2097, 0x1p-1074},
        {RP_F64, 0x1.8p1023, -2098, 0x1p-1074},
        {RP_F64, 0x1p-1074, 100000, INFINITY},
        {RP_F64, 0x1p1023, -100000, 0},
        {RP_F64, 1.5, -1075, 0x1p-1074},
        {RP_F64, 3, -1075, 0x1p-1073},
        {RP_F64, 0x1.0000000000001p0, -1023, 0x1p-1023},
        {RP_F64, INFINITY, -3000, INFINITY},
        {RP_F16, 0x1p-10, 20, 1024},
        {RP_F16, 0x1p-24, 30, 64},
        {RP_F16, 1.5, 16, INFINITY},
        {RP_F16, 1, -25, 0},
        {RP_BF16, 0x1p-100, 200, 0x1p100},
        {RP_BF16, 3, -26, 0x1.8p-25},
        {RP_I64, 5, 200, INFINITY},
        {RP_I32, 5, -200, 0},
        {RP_F64, 1, INT64_C(1) << 32, 1},
        {RP_F32, 1, (INT64_C(1) << 32) + 1, 2},
        {RP_F64, 1, INT64_MAX, 0.5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int narrow = 0; narrow < 2; narrow++) {
            if (narrow && cases[i].exponent != (int32_t)cases[i].exponent) continue;
            rp_scope scope = rp_scope_begin();
            double x[3] = {cases[i].x, -cases[i].x, cases[i].x}, got[2][3];
            const int64_t exponents[] = {cases[i].exponent, cases[i].exponent, 0};
            rp_tensor *in[] = {rp_to_dtype(rp_from_data(x, RP_DIMS(3), RP_F64), cases[i].type),
                               rp_to_dtype(ints(exponents, 3), narrow ? RP_I32 : RP_I64)};
            rp_compiled *f = rp_compile((rp_fn){.body = scaled, .name = "ldexp"}, NULL);
            for (int how = 0; how < 2; how++) {
                rp_tensor *y = rp_ldexp(in[0], in[1]);
                for (int call = 0; how && call < 2; call++) assert_int_equal(rp_call(f, in, 2, &y, 1), RP_OK);
                no_errors(__LINE__);
                assert_int_equal(rp_dtype_of(y),
                                 cases[i].type == RP_I64 || cases[i].type == RP_I32 ? RP_F32 : cases[i].type);
                assert_int_equal(rp_to_host(rp_to_dtype(y, RP_F64), got[how], sizeof got[how]), RP_OK);
                for (int k = 0; k < 2; k++) {
                    const double want = k ? -cases[i].want : cases[i].want;
                    if (isnan(want) ? !isnan(got[how][k]) : got[how][k] != want)
                        fail_msg("%g * 2^%lld of %s: %a, not %a", x[k], (long long)cases[i].exponent,
                                 rp_dtype_name(cases[i].type), got[how][k], want);
                }
            }
            rp_compiled_release(f);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        }
    }
}

/* Sizes that are large only on the way. */
static void most_that_fits(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    IS(rp_unravel_index(INTS(5, 17), RP_DIMS(INT64_C(1) << 62, 8)), 0, 5, 2, 1);
    int64_t size[RP_MAX_DIMS];
    for (size_t d = 0; d < RP_MAX_DIMS; d++) size[d] = d < 3 ? 2 : 1;
    rp_tensor *x = rp_view(rp_arange(rp_i64(0), rp_i64(8)), size, RP_MAX_DIMS), *y = rp_chunk_cat(&x, 1, 1, 2);
    assert_int_equal(rp_ndim(y), 3);
    IS(y, 0, 1, 2, 3, 4, 5, 6, 7);
    y = rp_chunk_cat(&x, 1, 1, 3);
    IS(y, 0, 1, 2, 3, 0, 0, 4, 5, 6, 7, 0, 0);
    y = rp_chunk_cat(&x, 1, RP_MAX_DIMS - 2, 2);
    assert_int_equal(rp_ndim(y), RP_MAX_DIMS);
    REFUSED(rp_chunk_cat(&x, 1, RP_MAX_DIMS - 1, 2), RP_ERROR_SHAPE);
    rp_scope_end(scope, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(far_powers),
        cmocka_unit_test(segments_at_nan),
        cmocka_unit_test(slopes_of_whole_numbers),
        cmocka_unit_test(nothing_has_a_gradient),
        cmocka_unit_test(probabilities_ignore_nothing),
        cmocka_unit_test(spectra_of_infinities),
        cmocka_unit_test(windows_of_other_types),
        cmocka_unit_test(most_that_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
