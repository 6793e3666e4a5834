/* ctest: labels=numbers,threads cost=8 */
/* Recurrent layers on the CPU, whose steps are one launch (kernel/cpu/recur.h), beside the same steps one by one: states have the same bits,
   gradients are those of autograd through the steps. Every instruction set; sequences that are alone, few, and of several items; units that fill
   no vector, and more than a block of a product. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>
#include <reprise_ops.h>

#include "kernel/cpu/tiles.h"
#include "kernel/library.h"
#include "ops/private.h"

enum { CELLS = 4, MOST = 8 };

static void show_error(void) {
    if (rp_failed()) fail_msg("%s", rp_error_message());
}

static void *copied(rp_tensor *t) {
    const size_t bytes = (size_t)rp_numel(t) * rp_dtype_size(rp_dtype_of(t));
    void *data = malloc(bytes + 1);
    assert_non_null(data);
    assert_int_equal(rp_to_host(t, data, bytes), RP_OK);
    return data;
}
static void assert_same(rp_tensor *a, rp_tensor *b, const char *what) {
    show_error();
    assert_int_equal(rp_numel(a), rp_numel(b));
    void *x = copied(a), *y = copied(b);
    if (memcmp(x, y, (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a)))) fail_msg("%s: other bits", what);
    free(x);
    free(y);
}
static void assert_close(rp_tensor *a, rp_tensor *b, double error, const char *what) {
    show_error();
    assert_int_equal(rp_numel(a), rp_numel(b));
    double *x = copied(rp_to_dtype(a, RP_F64)), *y = copied(rp_to_dtype(b, RP_F64));
    for (int64_t i = 0; i < rp_numel(a); i++)
        if (!(fabs(x[i] - y[i]) <= error * (1 + fabs(y[i]))))
            fail_msg("%s: element %d: %.9g, not %.9g", what, (int)i, x[i], y[i]);
    free(x);
    free(y);
}

struct layer {
    unsigned cell;
    rp_dtype dtype;
    int64_t steps, rows, features, units;
    bool bias;
};
static const char *const names[CELLS] = {"tanh", "relu", "gru", "lstm"};

/* x, h, c, w_ih, w_hh, b_ih, b_hh */
static size_t inputs(const struct layer *l, rp_tensor **in) {
    const int64_t gates = rp__cell_gates(l->cell) * l->units;
    const double scale = 1 / sqrt((double)l->units + 1);
    in[0] = rp_randn(RP_DIMS(l->steps, l->rows, l->features));
    for (int k = 1; k < 3; k++) in[k] = rp_randn(RP_DIMS(1, l->rows, l->units));
    in[3] = rp_mul_scalar(rp_randn(RP_DIMS(gates, l->features)), rp_f64(scale));
    in[4] = rp_mul_scalar(rp_randn(RP_DIMS(gates, l->units)), rp_f64(scale));
    for (int k = 5; k < 7; k++) in[k] = rp_randn(RP_DIMS(gates));
    const size_t n = l->bias ? 7 : 5;
    for (size_t k = 0; k < n; k++) in[k] = rp_detach(rp_to_dtype(in[k], l->dtype));
    return n;
}

static void whole(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct layer *l = ctx;
    rp_tensor *const *w = in + 3;
    const size_t n = n_in - 3;
    (void)n_out;
    if (l->cell == RP__CELL_TANH) out[0] = rp_rnn_tanh(in[0], in[1], w, n, l->bias, 1, 0, false, false, false, &out[1]);
    if (l->cell == RP__CELL_RELU) out[0] = rp_rnn_relu(in[0], in[1], w, n, l->bias, 1, 0, false, false, false, &out[1]);
    if (l->cell == RP__CELL_GRU) out[0] = rp_gru(in[0], in[1], w, n, l->bias, 1, 0, false, false, false, &out[1]);
    rp_tensor *c = NULL;
    if (l->cell == RP__CELL_LSTM)
        out[0] = rp_lstm(in[0], in + 1, 2, w, n, l->bias, 1, 0, false, false, false, &out[1], &c);
    if (c) out[1] = rp_add(out[1], c); /* the last cell is a result, too */
}
static void by_steps(const struct layer *l, rp_tensor *const *in, rp_tensor **out) {
    rp_tensor *h = rp_select(in[1], 0, 0), *c = rp_select(in[2], 0, 0), *all[16];
    rp_tensor *b_ih = l->bias ? in[5] : NULL, *b_hh = l->bias ? in[6] : NULL;
    for (int64_t t = 0; t < l->steps; t++) {
        rp_tensor *x = rp_select(in[0], 0, t);
        rp_tensor *const both[2] = {h, c};
        if (l->cell == RP__CELL_TANH) h = rp_rnn_tanh_cell(x, h, in[3], in[4], b_ih, b_hh);
        if (l->cell == RP__CELL_RELU) h = rp_rnn_relu_cell(x, h, in[3], in[4], b_ih, b_hh);
        if (l->cell == RP__CELL_GRU) h = rp_gru_cell(x, h, in[3], in[4], b_ih, b_hh);
        if (l->cell == RP__CELL_LSTM) h = rp_lstm_cell(x, both, 2, in[3], in[4], b_ih, b_hh, &c);
        all[t] = rp_unsqueeze(h, 0);
    }
    out[0] = rp_cat(all, (size_t)l->steps, 0);
    out[1] = rp_unsqueeze(l->cell == RP__CELL_LSTM ? rp_add(h, c) : h, 0);
}

static void gradients(rp_tensor *const *out, rp_tensor *const *in, size_t n, bool lstm, rp_tensor **grad) {
    rp_tensor *loss = rp_add(rp_sum(rp_tanh(out[0])), rp_sum(rp_mul(out[1], out[1])));
    rp_tensor *wrt[MOST], *found[MOST];
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (i != 2 || lstm) wrt[k++] = in[i];
    assert_int_equal(rp_grad(&loss, 1, wrt, k, NULL, NULL, found), RP_OK);
    k = 0;
    for (size_t i = 0; i < n; i++) grad[i] = i != 2 || lstm ? found[k++] : NULL;
}

static const struct layer layers[] = {
    {0, RP_F32, 1, 1, 3, 1, true},    {0, RP_F32, 5, 1, 3, 7, true},   {0, RP_F32, 3, 9, 2, 300, false},
    {0, RP_F32, 6, 4, 5, 33, true},   {0, RP_F32, 4, 2, 5, 16, false}, {0, RP_F32, 2, 200, 3, 40, true},
    {0, RP_F32, 7, 5, 19, 130, true}, {0, RP_F64, 5, 3, 4, 9, true},   {0, RP_F64, 4, 1, 4, 130, false},
    {0, RP_F64, 3, 40, 8, 64, true},  {0, RP_F32, 2, 6, 3, 513, true}, /* by steps */
};

static void test_as_steps(void **state) {
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    (void)state;
    rp_manual_seed(1);
    for (unsigned k = 0; k < CELLS * sizeof layers / sizeof *layers; k++) {
        struct layer l = layers[k / CELLS];
        l.cell = k % CELLS;
        rp_scope scope = rp_scope_begin();
        rp_tensor *in[MOST];
        const size_t n = inputs(&l, in);
        const bool lstm = l.cell == RP__CELL_LSTM;
        for (size_t i = 0; i < n; i++) assert_int_equal(rp_set_requires_grad(in[i], true), RP_OK);
        for (unsigned i = 0; i < sizeof isas / sizeof *isas; i++) {
            const rp__tiles *tiles = rp__tiles_named(isas[i]);
            if (!tiles) continue;
            rp__tiles_set(tiles);
            rp_tensor *steps[2], *of_steps[MOST], *of_first[MOST];
            by_steps(&l, in, steps);
            show_error();
            gradients(steps, in, n, lstm, of_steps);
            for (int threads = 1; threads < 4; threads++) {
                rp_tensor *out[2], *grad[MOST];
                char what[100];
                snprintf(what, sizeof what, "%s, case %u, %s, %d threads", names[l.cell], k / CELLS, isas[i], threads);
                assert_int_equal(rp_set_num_threads(threads), RP_OK);
                whole(&l, in, n, out, 2);
                for (int r = 0; r < 2; r++) assert_same(out[r], steps[r], what);
                gradients(out, in, n, lstm, grad);
                for (size_t g = 0; g < n; g++) {
                    if (!grad[g]) continue;
                    assert_close(grad[g], of_steps[g], l.dtype == RP_F64 ? 1e-12 : 2e-4, what);
                    if (threads > 1)
                        assert_same(grad[g], of_first[g], what);
                    else
                        of_first[g] = grad[g];
                }
            }
        }
        rp__tiles_set(NULL);
        rp_scope_end(scope, NULL, 0);
    }
}

/* Both directions at once, the second of them from the end; what is reversed twice is as before. */
static void test_reversed(void **state) {
    (void)state;
    for (unsigned cell = 0; cell < CELLS; cell++) {
        const struct layer l = {cell, RP_F32, 6, 3, 4, 21, true};
        rp_tensor *in[MOST], *out[2], *turned[2];
        const size_t n = inputs(&l, in);
        rp_tensor *x = rp_linear(in[0], in[3], in[5]), *h = rp_select(in[1], 0, 0), *c = rp_select(in[2], 0, 0);
        rp_tensor *cell_of = cell == RP__CELL_LSTM ? c : NULL;
        rp_tensor *flipped = rp_contiguous(rp_flip(x, RP_DIMS(0)));
        assert_int_equal(n, 7);
        for (int r = 0; r < 2; r++) {
            rp_tensor *cells, *last_cell, *kept;
            turned[r] =
                rp_recur(r ? flipped : x, in[4], in[6], h, cell_of, cell, r == 1, &out[r], &cells, &last_cell, &kept);
            show_error();
        }
        assert_same(rp_contiguous(rp_flip(turned[1], RP_DIMS(0))), turned[0], names[cell]);
        assert_same(out[1], out[0], names[cell]);
    }
}

/* The bits of eager, also of gradients; after the second length the graph is one of all lengths, as it is not where steps are traced. */
static void test_compiled(void **state) {
    (void)state;
    for (unsigned cell = 0; cell < CELLS; cell++) {
        struct layer l = {cell, RP_F32, 6, 5, 4, 24, true};
        const bool lstm = cell == RP__CELL_LSTM;
        rp_tensor *in[MOST];
        const size_t n = inputs(&l, in);
        rp_compiled *f =
            rp_compile((rp_fn){whole, &l, sizeof l, "layer"},
                       RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true, .wait = true));
        show_error();
        for (size_t i = 1; i < n; i++) assert_int_equal(rp_set_requires_grad(in[i], true), RP_OK);
        for (int call = 0; call < 4; call++) {
            in[0] = rp_randn(RP_DIMS(call == 2 ? 9 : call == 3 ? 13 : 6, 5, 4));
            assert_int_equal(rp_set_requires_grad(in[0], true), RP_OK);
            rp_tensor *out[2][2], *grad[2][MOST];
            whole(&l, in, n, out[0], 2);
            assert_int_equal(rp_call(f, in, n, out[1], 2), RP_OK);
            for (int r = 0; r < 2; r++) assert_same(out[1][r], out[0][r], names[cell]);
            for (int i = 0; i < 2; i++) gradients(out[i], in, n, lstm, grad[i]);
            for (size_t g = 0; g < n; g++)
                if (grad[0][g]) assert_same(grad[1][g], grad[0][g], names[cell]);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_steps),
        cmocka_unit_test(test_reversed),
        cmocka_unit_test(test_compiled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
