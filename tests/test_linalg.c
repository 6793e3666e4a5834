/* Linear algebra where samples cannot go: factors that are unique only up to signs are multiplied together again, gradients are taken
   through symmetric matrices, and what has no answer is refused by name. On the CPU, and on CUDA where matrices travel to the host.
   ctest: labels=numbers,cuda timeout=300 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include <reprise.h>
#include <reprise_ir.h>

#include "kernel/lapack.h"
#include "support/cuda.h"

static bool have_cuda;

static void no_errors(int line) {
    if (rp_failed()) fail_msg("line %d: %s", line, rp_error_message());
}
#define OK() no_errors(__LINE__)

enum { N = 4 };

/* Numbers without order, the same at every call. */
static rp_tensor *numbers(const int64_t *size, size_t ndim, unsigned seed) {
    double v[256];
    int64_t n = 1;
    for (size_t d = 0; d < ndim; d++) n *= size[d];
    for (int64_t i = 0; i < n; i++) v[i] = sin(0.7 * (double)((i + 3) * (i + 1)) + 78.233 * seed) * 1.5;
    return rp_from_data(v, size, ndim, RP_F64);
}
static rp_tensor *turned(rp_tensor *t) { return rp_transpose(t, -2, -1); }
static rp_tensor *symmetric(rp_tensor *t) { return rp_mul_scalar(rp_add(t, turned(t)), rp_f64(0.5)); }
static rp_tensor *positive(rp_tensor *t) {
    rp_tensor *place = rp_arange(rp_i64(0), rp_i64(rp_size(t, -1)));
    rp_tensor *one = rp_to_dtype(rp_eq(rp_unsqueeze(place, 1), place), RP_F64);
    return rp_add(rp_matmul(t, turned(t)), rp_mul_scalar(one, rp_f64(2)));
}

static void near(rp_tensor *a, rp_tensor *b, double tolerance, int line) {
    double off = rp_item_f64(rp_amax(rp_abs(rp_flatten(rp_sub(a, b)))));
    no_errors(line);
    if (!(off <= tolerance)) fail_msg("line %d: %g apart", line, off);
}
#define NEAR(a, b) near(a, b, 1e-10, __LINE__)

/* A negative power goes by the inverse, whose success the host reads: no sample, since those are graphed. */
static void negative_powers(void) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *a = positive(numbers(RP_DIMS(2, N, N), 9)), *inverse = rp_linalg_inv(a);
    NEAR(rp_linalg_matrix_power(a, -2), rp_matmul(inverse, inverse));
    NEAR(rp_matmul(rp_linalg_matrix_power(a, -3), rp_linalg_matrix_power(a, 3)), rp_matmul(a, inverse));
    rp_scope_end(scope, NULL, 0);
}

/* Of a matrix of rank 2 two columns say all: its parts give it again, with its values, and gradients are those of the whole. */
static void low_ranks(void) {
    rp_scope scope = rp_scope_begin();
    for (int wide = 0; wide < 2; wide++) {
        rp_tensor *left = numbers(RP_DIMS(2, 5, 2), 3), *right = numbers(RP_DIMS(2, 2, 3), 5),
                  *a = rp_matmul(left, right);
        rp_tensor *s, *v, *u, *whole, *grad[2];
        if (wide) a = rp_contiguous(turned(a));
        whole = rp_slice(rp_linalg_svdvals(a), -1, 0, 2, 1);
        u = rp_svd_lowrank(a, 2, 2, NULL, &s, &v);
        NEAR(s, whole);
        NEAR(rp_matmul(rp_mul(u, rp_unsqueeze(s, -2)), turned(v)), a);
        rp_tensor *shift = rp_select(numbers(RP_DIMS(1, rp_size(a, -1)), 8), 0, 0);
        u = rp_svd_lowrank(rp_add(a, shift), 2, 1, shift, &s, &v); /* broadcast, and taken off */
        NEAR(rp_matmul(rp_mul(u, rp_unsqueeze(s, -2)), turned(v)), a);
        u = rp_pca_lowrank(a, INT64_MIN, false, 2, &s, &v); /* of 3: one value is 0 */
        assert_int_equal(rp_size(s, -1), 3);
        NEAR(rp_matmul(rp_mul(u, rp_unsqueeze(s, -2)), turned(v)), a);
        rp_tensor *centered = rp_sub(a, rp_mean(a, RP_DIMS(-2), true));
        u = rp_pca_lowrank(a, 2, true, 2, &s, &v);
        NEAR(rp_matmul(rp_mul(u, rp_unsqueeze(s, -2)), turned(v)), centered);
        for (int k = 0; k < 2; k++) {
            rp_tensor *x = rp_clone(a), *values;
            rp_set_requires_grad(x, true);
            if (k)
                (void)rp_svd_lowrank(x, 2, 2, NULL, &values, NULL);
            else
                values = rp_slice(rp_linalg_svdvals(x), -1, 0, 2, 1);
            rp_tensor *y = rp_sum(rp_mul(values, values));
            rp_grad(&y, 1, &x, 1, NULL, NULL, &grad[k]);
            OK();
        }
        near(grad[0], grad[1], 1e-8, __LINE__);
        assert_true(rp_failed() == false);
        (void)rp_pca_lowrank(a, 4, true, 2, NULL, NULL);
        assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
        (void)rp_pca_lowrank(a, 2, true, -1, NULL, NULL);
        assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
        (void)rp_svd_lowrank(a, -1, 2, NULL, NULL, NULL);
        assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
        for (int64_t turns = -2; turns <= 2; turns += 4) { /* the default of 6 are more than there are */
            u = rp_svd_lowrank(a, 6, turns, NULL, &s, &v);
            assert_int_equal(rp_size(s, -1), 3);
            NEAR(rp_matmul(rp_mul(u, rp_unsqueeze(s, -2)), turned(v)), a);
        }
    }
    rp_scope_end(scope, NULL, 0);
}

/* ---- factors */

static rp_tensor *diagonal(rp_tensor *values, rp_tensor *like) { return rp_mul(like, rp_unsqueeze(values, -2)); }

static void factors(void) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *a = numbers(RP_DIMS(2, 5, 3), 1), *wide = turned(a), *vectors, *s, *vh, *r;
    for (int k = 0; k < 2; k++) {
        rp_tensor *x = k ? wide : a, *u = rp_linalg_svd(x, false, NULL, &s, &vh);
        NEAR(rp_matmul(diagonal(s, u), vh), x);
        NEAR(rp_matmul(turned(u), u), rp_matmul(vh, turned(vh)));
        NEAR(rp_linalg_svdvals(x), s);
        u = rp_linalg_svd(x, true, NULL, &s, &vh);
        assert_int_equal(rp_size(u, -1), rp_size(u, -2));
        assert_int_equal(rp_size(vh, -1), rp_size(vh, -2));
        NEAR(rp_matmul(rp_matmul(turned(u), x), turned(vh)),
             k ? turned(rp_matmul(rp_matmul(vh, turned(x)), u)) : rp_matmul(rp_matmul(turned(u), x), turned(vh)));
        rp_tensor *q = rp_linalg_qr(x, "reduced", &r);
        NEAR(rp_matmul(q, r), x);
        q = rp_linalg_qr(x, "complete", &r);
        NEAR(rp_matmul(q, r), x);
        NEAR(rp_matmul(rp_matmul(x, rp_linalg_pinv(x)), x), x);
    }
    rp_tensor *sym = symmetric(numbers(RP_DIMS(2, N, N), 2)), *values = rp_linalg_eigh(sym, "L", &vectors);
    NEAR(rp_matmul(diagonal(values, vectors), turned(vectors)), sym);
    NEAR(rp_linalg_eigvalsh(sym, "U"), values);
    rp_tensor *pos = positive(numbers(RP_DIMS(2, N, N), 3)), *l = rp_linalg_cholesky(pos);
    NEAR(rp_matmul(l, turned(l)), pos);
    rp_tensor *up = rp_linalg_cholesky(pos, RP_OPTIONS(rp_linalg_cholesky_options, .upper = RP_TRUE));
    NEAR(up, turned(l));
    rp_tensor *inverse = rp_linalg_inv(pos), *logarithm, *sign = rp_linalg_slogdet(pos, &logarithm);
    NEAR(rp_matmul(rp_matmul(pos, inverse), pos), pos);
    near(rp_mul(sign, rp_exp(logarithm)), rp_linalg_det(pos), 1e-8, __LINE__);
    rp_scope_end(scope, NULL, 0);
    OK();
}

static void norms(void) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *a = numbers(RP_DIMS(2, 5, 3), 4), *s = rp_linalg_svdvals(a);
    NEAR(rp_linalg_matrix_norm(a, rp_i64(2)), rp_select(s, -1, 0));
    NEAR(rp_linalg_matrix_norm(a, rp_i64(-2)), rp_select(s, -1, 2));
    NEAR(rp_linalg_matrix_norm_str(a, "nuc"), rp_sum(s, RP_DIMS(-1)));
    NEAR(rp_linalg_matrix_norm_str(a, "fro"), rp_sqrt(rp_sum(rp_mul(s, s), RP_DIMS(-1))));
    rp_tensor *kept = rp_linalg_matrix_norm(rp_movedim(a, (const int64_t[]){0}, 1, (const int64_t[]){2}, 1), rp_i64(2),
                                            RP_DIMS(1, 0), true);
    assert_int_equal(rp_ndim(kept), 3);
    NEAR(rp_flatten(kept), rp_select(s, -1, 0));
    OK();
    rp_scope_end(scope, NULL, 0);
}

/* ---- gradients: of a function of one matrix to a number, against its differences */

typedef rp_tensor *function(rp_tensor *x);
static rp_tensor *weighed(rp_tensor *t, unsigned seed) {
    int64_t size[RP_MAX_DIMS];
    for (size_t d = 0; d < rp_ndim(t); d++) size[d] = rp_size(t, (int64_t)d);
    return rp_sum(rp_mul(t, numbers(size, rp_ndim(t), seed)));
}
static rp_tensor *by_cholesky(rp_tensor *x) { return weighed(rp_linalg_cholesky(positive(x)), 11); }
static rp_tensor *by_upper(rp_tensor *x) {
    return weighed(rp_linalg_cholesky(positive(x), RP_OPTIONS(rp_linalg_cholesky_options, .upper = RP_TRUE)), 12);
}
static rp_tensor *by_values(rp_tensor *x) { return weighed(rp_linalg_eigvalsh(symmetric(x)), 13); }
static rp_tensor *by_vectors(rp_tensor *x) { /* squares: without signs */
    rp_tensor *v, *w = rp_linalg_eigh(symmetric(x), "L", &v);
    return rp_add(weighed(rp_mul(v, v), 14), weighed(rp_mul(w, w), 15));
}
static rp_tensor *by_parts(rp_tensor *x) {
    rp_tensor *s, *vh, *u = rp_linalg_svd(x, false, NULL, &s, &vh);
    return rp_add(rp_add(weighed(rp_mul(u, u), 16), weighed(s, 17)), weighed(rp_mul(vh, vh), 18));
}
static rp_tensor *by_parts_of_wide(rp_tensor *x) { return by_parts(turned(rp_slice(x, 1, 0, 3))); }
static rp_tensor *by_parts_of_tall(rp_tensor *x) { return by_parts(rp_slice(x, 1, 0, 3)); }
static rp_tensor *by_nuclear(rp_tensor *x) { return rp_linalg_matrix_norm_str(rp_slice(x, 1, 0, 3), "nuc"); }
static rp_tensor *by_spectral(rp_tensor *x) { return rp_linalg_matrix_norm(x, rp_i64(2)); }
static rp_tensor *by_least(rp_tensor *x) {
    return weighed(rp_linalg_lstsq(rp_slice(x, 1, 0, 3), rp_mul(x, x), rp_none(), NULL, NULL, NULL, NULL), 19);
}
static rp_tensor *by_polar(rp_tensor *x) {
    rp_tensor *h, *u = rp_linalg_polar(x, &h);
    return rp_add(weighed(u, 20), weighed(h, 21));
}
static rp_tensor *by_polar_of_tall(rp_tensor *x) { return by_polar(rp_slice(x, 1, 0, 3)); }
static rp_tensor *by_root(rp_tensor *x) { return weighed(rp_linalg_matrix_sqrth(positive(x)), 22); }
static rp_tensor *by_det(rp_tensor *x) { return rp_linalg_det(x); }

static double value_of(function *f, const double *v) {
    rp_scope scope = rp_scope_begin();
    double y = rp_item_f64(f(rp_from_data(v, RP_DIMS(N, N), RP_F64)));
    rp_scope_end(scope, NULL, 0);
    return y;
}

/* Of f at v. */
static void gradient(function *f, const double *v, double *slope) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_from_data(v, RP_DIMS(N, N), RP_F64);
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    assert_int_equal(rp_backward(f(x), NULL, NULL), RP_OK);
    assert_int_equal(rp_to_host(rp_grad_of(x), slope, N * N * sizeof *slope), RP_OK);
    rp_scope_end(scope, NULL, 0);
    OK();
}

static void gradients(void) {
    static const struct {
        const char *name;
        function *f;
    } cases[] = {{"cholesky", by_cholesky},
                 {"upper cholesky", by_upper},
                 {"eigvalsh", by_values},
                 {"eigh", by_vectors},
                 {"svd", by_parts},
                 {"svd, wide", by_parts_of_wide},
                 {"svd, tall", by_parts_of_tall},
                 {"nuc", by_nuclear},
                 {"norm 2", by_spectral},
                 {"lstsq", by_least},
                 {"polar", by_polar},
                 {"polar, tall", by_polar_of_tall},
                 {"matrix_sqrth", by_root},
                 {"det", by_det}};
    double v[N * N], slope[N * N];
    for (int i = 0; i < N * N; i++) v[i] = sin(0.7 * (i + 3) * (i + 1) + 3) * 1.5;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gradient(cases[c].f, v, slope);
        for (int i = 0; i < N * N; i++) {
            const double at = v[i], step = 1e-6;
            v[i] = at + step;
            double up = value_of(cases[c].f, v);
            v[i] = at - step;
            double down = value_of(cases[c].f, v), want = (up - down) / (2 * step);
            v[i] = at;
            if (!(fabs(slope[i] - want) <= 1e-5 * (1 + fabs(want))))
                fail_msg("%s, element %d: gradient %.9g, by differences %.9g", cases[c].name, i, slope[i], want);
        }
        OK();
    }
}

/* A determinant of 0 has the gradient that PyTorch gives it, 0, and not an error. */
static void singular_determinant(void) {
    double v[N * N], slope[N * N];
    for (int i = 0; i < N * N; i++) v[i] = i % N == 0 ? 0 : sin(0.7 * (i + 3) * (i + 1));
    gradient(by_det, v, slope);
    for (int i = 0; i < N * N; i++) assert_true(slope[i] == 0);
}

/* U H = A and X X = A have slopes where values are equal, unlike their vectors: at 2 those of U are (dA - dA^T) / 4, those of H and of
   the root of 4 the halves of dA + dA^T and a quarter of them. */
static void equal_values(void) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *two = rp_diag_embed(rp_full(RP_DIMS(N), rp_f64(2), RP_OPTIONS(rp_full_options, .dtype = RP_F64))), *h;
    rp_tensor *four = rp_mul_scalar(two, rp_i64(2)), *to_u = numbers(RP_DIMS(N, N), 20), *grad;
    rp_tensor *to_h = numbers(RP_DIMS(N, N), 21);
    rp_set_requires_grad(two, true);
    rp_set_requires_grad(four, true);
    rp_tensor *u = rp_linalg_polar(two, &h), *root = rp_linalg_matrix_sqrth(four), *y;
    NEAR(rp_matmul(u, h), two);
    NEAR(rp_matmul(root, root), four);
    y = rp_add(rp_sum(rp_mul(u, to_u)), rp_sum(rp_mul(h, to_h)));
    rp_grad(&y, 1, &two, 1, NULL, NULL, &grad);
    NEAR(grad, rp_add(rp_mul_scalar(rp_sub(to_u, turned(to_u)), rp_f64(0.25)), symmetric(to_h)));
    y = rp_sum(rp_mul(root, to_u));
    rp_grad(&y, 1, &four, 1, NULL, NULL, &grad);
    NEAR(grad, rp_mul_scalar(symmetric(to_u), rp_f64(0.25)));
    rp_scope_end(scope, NULL, 0);
    OK();
}

/* ---- what has no answer */

static void refused(int line, rp_tensor *t, rp_status status, const char *part) {
    if (!rp_is_error(t) || rp_error_status() != status || !strstr(rp_error_message(), part))
        fail_msg("line %d: %s", line, rp_error_message());
    rp_error_take();
}
#define REFUSED(t, status, part) refused(__LINE__, t, status, part)

static void no_answers(void) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *zero = rp_zeros(RP_DIMS(3, 3)), *one = rp_ones(RP_DIMS(3, 2)), *info;
    REFUSED(rp_linalg_inv(zero), RP_ERROR_INVALID_ARGUMENT, "singular");
    REFUSED(rp_linalg_solve(zero, one), RP_ERROR_INVALID_ARGUMENT, "singular");
    REFUSED(rp_linalg_cholesky(zero), RP_ERROR_INVALID_ARGUMENT, "order 1 is not positive-definite");
    (void)rp_linalg_cholesky_ex(zero, NULL, &info);
    assert_int_equal((int)rp_item_f64(info), 1);
    assert_true(rp_item_f64(rp_linalg_det(zero)) == 0);
    REFUSED(rp_linalg_inv(one), RP_ERROR_SHAPE, "square");
    REFUSED(rp_linalg_polar(turned(one), NULL), RP_ERROR_SHAPE, "at least as many rows as columns");
    REFUSED(rp_linalg_matrix_sqrth(one), RP_ERROR_SHAPE, "square");
    assert_true(rp_item_f64(rp_sum(rp_linalg_matrix_sqrth(rp_full(RP_DIMS(1, 1), rp_f64(-1))))) == 0);
    rp_tensor *few = numbers(RP_DIMS(6, 3), 23), *of_rank_3 = rp_matmul(few, turned(few)); /* eigenvalues about 0 */
    rp_tensor *its = rp_linalg_matrix_sqrth(of_rank_3);
    NEAR(rp_matmul(its, its), of_rank_3);
    REFUSED(rp_linalg_det(rp_ones(RP_DIMS(3))), RP_ERROR_SHAPE, "2 dimensions");
    REFUSED(rp_linalg_qr(one, "thin", NULL), RP_ERROR_INVALID_ARGUMENT, "thin");
    REFUSED(rp_linalg_eigh(zero, "X", NULL), RP_ERROR_INVALID_ARGUMENT, "UPLO");
    REFUSED(rp_linalg_inv(rp_to_dtype(zero, RP_F16)), RP_ERROR_DTYPE, "Half");
    REFUSED(rp_linalg_svdvals(rp_full(RP_DIMS(2, 2), rp_f64(NAN))), RP_ERROR_INVALID_ARGUMENT, "NaN");
    /* 2 x 2 blocks have two pivots: the second one of the last row would lie behind the matrix. */
    static const int32_t half[3] = {1, 2, -1}, whole[3] = {1, -3, -3};
    rp_tensor *ld = rp_add(positive(numbers(RP_DIMS(3, 3), 7)), numbers(RP_DIMS(3, 3), 8)), *b = rp_ones(RP_DIMS(3, 2));
    b = rp_to_dtype(b, RP_F64);
    REFUSED(rp_linalg_ldl_solve(ld, rp_from_data(half, RP_DIMS(3), RP_I32), b), RP_ERROR_INVALID_ARGUMENT,
            "half of a block");
    (void)rp_linalg_ldl_solve(ld, rp_from_data(whole, RP_DIMS(3), RP_I32), b);
    rp_scope_end(scope, NULL, 0);
    OK();
}

/* Compiled functions compute it in between; its gradient and its refusals are those of eager calls. */
static void inverse_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sum(rp_exp(rp_linalg_inv(rp_mul(in[0], in[0]))));
}
static void compiled(void) {
    double v[N * N], slope[2][N * N];
    for (int i = 0; i < N * N; i++) v[i] = sin(0.7 * (i + 3) * (i + 1) + 3) + (i % (N + 1) == 0 ? 3 : 0);
    for (int k = 0; k < 2; k++) {
        rp_scope scope = rp_scope_begin();
        rp_fn fn = {inverse_body, NULL, 0, "inverse"};
        rp_compiled *f = k ? rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused")) : rp_plain(fn);
        rp_tensor *x = rp_from_data(v, RP_DIMS(N, N), RP_F64), *y, *zero = rp_zeros(RP_DIMS(3, 3));
        assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_int_equal(rp_backward(y, NULL, NULL), RP_OK);
        assert_int_equal(rp_to_host(rp_grad_of(x), slope[k], sizeof slope[k]), RP_OK);
        assert_int_not_equal(rp_call(f, &zero, 1, &y, 1), RP_OK);
        if (!strstr(rp_error_message(), "singular") || !strstr(rp_error_message(), "test_linalg.c:"))
            fail_msg("%s: %s", k ? "compiled" : "eager", rp_error_message());
        rp_error_take();
        rp_compiled_release(f);
        rp_scope_end(scope, NULL, 0);
        OK();
    }
    assert_memory_equal(slope[0], slope[1], sizeof slope[0]);
}

/* On the CPU matrices are inverted where the program stands: nothing breaks its graph, replays have eager's bits, and a replay that finds a
   singular matrix says so where somebody waits. */
static void in_one_graph(void) {
    double v[N * N], zeros[N * N] = {0};
    for (int i = 0; i < N * N; i++) v[i] = sin(0.7 * (i + 3) * (i + 1) + 3) + (i % (N + 1) == 0 ? 3 : 0);
    rp_scope scope = rp_scope_begin();
    rp_fn fn = {inverse_body, NULL, 0, "inverse"};
    rp_compiled *f = rp_compile(fn, NULL);
    for (int call = 0; call < 8; call++) {
        v[0] += call;
        rp_tensor *x = rp_from_data(call == 4 ? zeros : v, RP_DIMS(N, N), RP_F64), *y, *want;
        rp_status status = rp_call(f, &x, 1, &y, 1);
        if (call == 4) {
            if (status == RP_OK) status = rp_synchronize(rp_cpu());
            assert_int_not_equal(status, RP_OK);
            if (!strstr(rp_error_message(), "singular") || !strstr(rp_error_message(), "test_linalg.c:"))
                fail_msg("%s", rp_error_message());
            rp_error_take();
            continue;
        }
        assert_int_equal(status, RP_OK);
        inverse_body(NULL, &x, 1, &want, 1);
        const double a = rp_item_f64(y), b = rp_item_f64(want);
        assert_memory_equal(&a, &b, sizeof a);
    }
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, i, &e), RP_OK);
        if (strcmp(e.kind, "break") == 0) fail_msg("%s at %s", e.reason, e.site);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    OK();
}

static void all(void) {
    compiled();
    in_one_graph();
    factors();
    negative_powers();
    low_ranks();
    norms();
    gradients();
    equal_values();
    singular_determinant();
    no_answers();
}

/* A graph's text may give a batch to one operand alone: nine matrices and one right side, whose solutions have no room. */
static void other_batches(void **state) {
    (void)state;
    static const char text[] = "graph \"one\" (%0: f32[3, 3, 1, 1], %1: f32[4, 4]) {\n"
                               "  %2: f32[4, 4] = ldl_solution(%0, %1, %0)\n  return %2\n}\n";
    if (!rp__lapack_get()) skip();
    rp_ir *ir = rp_ir_parse(text, strlen(text));
    rp_tensor *in[] = {rp_ones(RP_DIMS(3, 3, 1, 1)), rp_ones(RP_DIMS(4, 4))}, *out;
    assert_int_equal(rp_ir_run(ir, in, 2, &out, 1), RP_ERROR_SHAPE);
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    rp_ir_release(ir);
}

static void test_cpu(void **state) {
    (void)state;
    if (!rp__lapack_get()) skip();
    all();
}

static void test_cuda(void **state) {
    (void)state;
    if (!have_cuda || !rp__lapack_get()) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    factors();
    negative_powers();
    low_ranks();
    norms();
    gradients();
    equal_values();
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

int main(void) {
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu), cmocka_unit_test(test_cuda),
                                       cmocka_unit_test(other_batches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
