/* Functions written out of other ops by a program (docs/from-pytorch.md, "Not here yet") give what the ops of their names give, eagerly and compiled, with gradients.
   Expected numbers are written out or computed here from the definition. ctest: timeout=60 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <reprise_nn.h>

enum { ROWS = 3, COLUMNS = 5 };
static const float data[ROWS][COLUMNS] = {{3, -1, 4, 1, -5}, {9, 2, -6, 5, 3}, {-5, 8, 9.5f, 7, -9}};

static void extremes(rp_tensor *x, rp_tensor **out) {
    out[0] = rp_topk(x, 1, 1, true, true, &out[1]);
    out[2] = rp_topk(x, 1, 1, false, true, &out[3]);
    out[4] = rp_neg(rp_amax(rp_neg(x), RP_DIMS(1), false));
}
static void variance(rp_tensor *x, rp_tensor **out) {
    rp_tensor *d = rp_sub(x, rp_mean(x, RP_DIMS(1), true));
    out[0] = rp_div_scalar(rp_sum(rp_mul(d, d), RP_DIMS(1)), rp_f64(COLUMNS - 1));
    out[1] = rp_sqrt(out[0]);
}
static void triangles(rp_tensor *x, rp_tensor **out) {
    rp_tensor *n = rp_arange(rp_i64(0), rp_i64(COLUMNS));
    rp_tensor *upper = rp_le(rp_unsqueeze(n, 1), rp_unsqueeze(n, 0)); /* row <= column */
    out[0] = rp_matmul(x, rp_to_dtype(upper, RP_F32));                /* cumsum */
}
static void activations(rp_tensor *x, rp_tensor **out) {
    out[0] = rp_mul(x, rp_sigmoid(x));
    out[1] = rp_add(rp_relu(x), rp_log(rp_add_scalar(rp_exp(rp_neg(rp_abs(x))), rp_f64(1))));
    out[2] = rp_where(rp_gt_scalar(x, rp_i64(0)), x, rp_mul_scalar(x, rp_f64(0.25)));
}
static void pools(rp_tensor *x, rp_tensor **out) { /* of (1, 1, 2, 4) with windows of 2 */
    rp_tensor *image = rp_reshape(rp_slice(rp_reshape(x, RP_DIMS(15)), 0, 0, 8, 1), RP_DIMS(1, 1, 1, 2, 2, 2));
    out[0] = rp_amax(image, RP_DIMS(3, 5), false);
    out[1] = rp_mean(image, RP_DIMS(3, 5));
}
static void attention(rp_tensor *x, rp_tensor **out) { /* q = k = v = x */
    rp_tensor *scores = rp_div_scalar(rp_matmul(x, rp_transpose(x, -2, -1)), rp_f64(sqrt(COLUMNS)));
    out[0] = rp_matmul(rp_softmax(scores, -1), x);
}

static void masked(rp_tensor *x, rp_tensor **out) { /* torch.masked's sum, mean, amax and softmax where x is above 0 */
    rp_tensor *mask = rp_gt_scalar(rp_detach(x), rp_i64(0)), *rest = rp_logical_not(mask);
    rp_tensor *filled = rp_masked_fill_scalar(x, rest, rp_f64(-INFINITY));
    out[0] = rp_sum(rp_masked_fill_scalar(x, rest, rp_i64(0)), RP_DIMS(1));
    out[1] = rp_div(out[0], rp_sum(mask, RP_DIMS(1)));
    out[2] = rp_amax(filled, RP_DIMS(1));
    out[3] = rp_softmax(filled, 1);
}

typedef struct recipe {
    void (*run)(rp_tensor *x, rp_tensor **out);
    size_t n_out;
} recipe;
static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    (*(const recipe *const *)ctx)->run(in[0], out);
}

enum { MOST = 5, ROOM = 32 };
static void fetch(rp_tensor *t, double *values, size_t *n) {
    *n = (size_t)rp_numel(t);
    assert_true(*n <= ROOM);
    assert_int_equal(rp_to_host(rp_to_dtype(t, RP_F64), values, *n * sizeof *values), RP_OK);
}

/* Runs it eagerly and three times compiled, which give the same bits; `values` are those. */
static void run(const recipe *r, double values[MOST][ROOM], size_t n[MOST]) {
    rp_compiled *f = rp_compile((rp_fn){body, (void *)(uintptr_t)&r, sizeof r, "recipe"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int i = 0; i < 4; i++) {
        rp_tensor *x = rp_from_data(data, RP_DIMS(ROWS, COLUMNS), RP_F32), *out[MOST] = {NULL};
        rp_set_requires_grad(x, true);
        if (i == 0)
            r->run(x, out);
        else
            assert_int_equal(rp_call(f, &x, 1, out, r->n_out), RP_OK);
        for (size_t k = 0; k < r->n_out; k++) {
            double again[ROOM];
            size_t count;
            fetch(rp_detach(out[k]), i ? again : values[k], i ? &count : &n[k]);
            if (i) assert_memory_equal(again, values[k], n[k] * sizeof(double));
        }
        assert_int_equal(rp_backward(rp_sum(out[0]), NULL, NULL), RP_OK);
        assert_int_equal(rp_numel(rp_grad_of(x)), ROWS * COLUMNS);
    }
    rp_compiled_release(f);
}
static void near(const double *got, size_t n, const double *want, size_t n_want) {
    assert_int_equal(n, n_want);
    for (size_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 2e-6 * (1 + fabs(want[i]))))
            fail_msg("%zu: %.9g, not %.9g", i, got[i], want[i]);
}

static void recipes(void **state) {
    (void)state;
    double v[MOST][ROOM], want[ROOM];
    size_t n[MOST];
    const float *x = &data[0][0];
    rp_scope scope = rp_scope_begin();

    run(&(recipe){extremes, 5}, v, n);
    near(v[0], n[0], (double[]){4, 9, 9.5}, ROWS);
    near(v[1], n[1], (double[]){2, 0, 2}, ROWS);
    near(v[2], n[2], (double[]){-5, -6, -9}, ROWS);
    near(v[3], n[3], (double[]){4, 2, 4}, ROWS);
    near(v[4], n[4], (double[]){-5, -6, -9}, ROWS);

    run(&(recipe){variance, 2}, v, n);
    for (int r = 0; r < ROWS; r++) {
        double mean = 0, sum = 0;
        for (int c = 0; c < COLUMNS; c++) mean += (double)data[r][c] / COLUMNS;
        for (int c = 0; c < COLUMNS; c++) sum += (data[r][c] - mean) * (data[r][c] - mean);
        want[r] = sum / (COLUMNS - 1);
        want[ROWS + r] = sqrt(want[r]);
    }
    near(v[0], n[0], want, ROWS);
    near(v[1], n[1], want + ROWS, ROWS);

    run(&(recipe){triangles, 1}, v, n);
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int c = 0; c < COLUMNS; c++) want[r * COLUMNS + c] = sum += data[r][c];
    }
    near(v[0], n[0], want, ROWS * COLUMNS);

    run(&(recipe){activations, 3}, v, n);
    for (int i = 0; i < ROWS * COLUMNS; i++) want[i] = x[i] / (1 + exp(-(double)x[i]));
    near(v[0], n[0], want, ROWS * COLUMNS);
    for (int i = 0; i < ROWS * COLUMNS; i++) want[i] = log1p(exp((double)x[i]));
    near(v[1], n[1], want, ROWS * COLUMNS);
    for (int i = 0; i < ROWS * COLUMNS; i++) want[i] = x[i] > 0 ? x[i] : 0.25 * x[i];
    near(v[2], n[2], want, ROWS * COLUMNS);

    run(&(recipe){pools, 2}, v, n); /* 3 -1 4 1 / -5 9 2 -6 */
    near(v[0], n[0], (double[]){9, 4}, 2);
    near(v[1], n[1], (double[]){1.5, 0.25}, 2);

    run(&(recipe){attention, 1}, v, n);
    for (int r = 0; r < ROWS; r++) {
        double score[ROWS], largest = -INFINITY, sum = 0;
        for (int s = 0; s < ROWS; s++) {
            score[s] = 0;
            for (int c = 0; c < COLUMNS; c++) score[s] += (double)data[r][c] * data[s][c] / sqrt(COLUMNS);
            largest = fmax(largest, score[s]);
        }
        for (int s = 0; s < ROWS; s++) sum += score[s] = exp(score[s] - largest);
        for (int c = 0; c < COLUMNS; c++) {
            want[r * COLUMNS + c] = 0;
            for (int s = 0; s < ROWS; s++) want[r * COLUMNS + c] += score[s] / sum * data[s][c];
        }
    }
    near(v[0], n[0], want, ROWS * COLUMNS);

    run(&(recipe){masked, 4}, v, n); /* 3 4 1 / 9 2 5 3 / 8 9.5 7 */
    near(v[0], n[0], (double[]){8, 19, 24.5}, ROWS);
    near(v[1], n[1], (double[]){8.0 / 3, 4.75, 24.5 / 3}, ROWS);
    near(v[2], n[2], (double[]){4, 9, 9.5}, ROWS);
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int c = 0; c < COLUMNS; c++) sum += data[r][c] > 0 ? exp((double)data[r][c]) : 0;
        for (int c = 0; c < COLUMNS; c++) want[r * COLUMNS + c] = data[r][c] > 0 ? exp((double)data[r][c]) / sum : 0;
    }
    near(v[3], n[3], want, ROWS * COLUMNS);
    assert_false(rp_failed());
    rp_scope_end(scope, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(recipes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
