/* Every derivative of the op table against central differences in float64, and every second derivative; contiguous and
   transposed inputs: the samples of tests/samples, and functions of several ops. A row that is differentiable and has no
   sample for it fails the test. */
/* ctest: timeout=600 cost=40 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "samples/samples.h"
#include "support/slow.h"

/* Sanitizers look for what the calls do, and every call is made: of the elements one of five is moved there. */
enum { MAX_IN = SAMPLE_IN + 1, MAX_NUMEL = 512, MAX_OUT = SAMPLE_OUT, N = 4, STEP = SLOW_BUILD ? 5 : 1 };

/* A sample of tests/samples, or a function of several ops. */
typedef rp_tensor *case_fn(rp_tensor **x);
typedef struct grad_case {
    const sample *sample;
    const char *name, *operands; /* of a function */
    case_fn *fn;
} grad_case;

/* ---------------------------------------------------------------- functions */

#define CASE(id, expression)                                                                                           \
    static rp_tensor *id(rp_tensor **x) { return expression; }

CASE(f_square, rp_mul(x[0], x[0]))
CASE(f_sign, rp_mul(rp_sign(x[0]), x[0]))
CASE(f_detach, rp_add(rp_mul(rp_fill(rp_detach(x[0]), rp_f64(3)), x[0]), x[0]))
CASE(f_copy_, rp_mul(rp_copy_(rp_clone(x[0]), x[1]), x[0]))
CASE(f_fill_, rp_mul(rp_fill_(rp_clone(x[0]), rp_f64(2)), x[0]))
CASE(f_cat, rp_cat(RP_TENSORS(x[0], x[1], x[0]), 1))
CASE(f_cross_entropy, rp_cross_entropy(x[0], rp_from_data((const int64_t[]){2, 0, -100}, RP_DIMS(3), RP_I64)))
CASE(f_expand, rp_mul(rp_expand(x[0], RP_DIMS(2, 4, 3)), rp_expand(x[1], RP_DIMS(2, 4, -1))))

/* In place through views of a result: the whole is returned. */
static rp_tensor *f_view_mul_(rp_tensor **x) {
    rp_tensor *base = rp_clone(x[0]); /* (2, 3) */
    rp_mul_(rp_select(base, 0, 1), x[1]);
    return base;
}
static rp_tensor *f_view_exp_(rp_tensor **x) {
    rp_tensor *base = rp_sin(x[0]);
    rp_tensor *view = rp_transpose(rp_slice(base, 1, 0, 2, 1), 0, 1);
    rp_exp_(view);
    return rp_add(rp_sum(rp_mul(view, view)), base);
}
static rp_tensor *f_view_copy_into_plain(rp_tensor **x) {
    rp_tensor *base = rp_zeros(RP_DIMS(3, 3), RP_OPTIONS(rp_zeros_options, .dtype = RP_F64));
    rp_copy_(rp_slice(base, 0, 0, 2, 1), x[0]);
    rp_copy_(rp_select(base, 0, 2), rp_mul(rp_clone(rp_select(base, 0, 1)), rp_clone(rp_select(base, 0, 0))));
    return base;
}
static rp_tensor *f_base_then_view(rp_tensor **x) {
    rp_tensor *base = rp_clone(x[0]);
    rp_tensor *view = rp_select(base, 0, 0);
    rp_mul_(base, x[0]);
    return rp_mul(view, view);
}
static rp_tensor *f_view_twice(rp_tensor **x) {
    rp_tensor *base = rp_clone(x[0]);
    rp_tensor *a = rp_view(base, RP_DIMS(6)), *b = rp_select(base, 1, 2);
    rp_sin_(rp_slice(a, 0, 1, 4, 2));
    rp_tanh_(b);
    return rp_mul(a, a);
}

/* Rows that read one triangle, or whose results are unique up to signs. */
static rp_tensor *halves(rp_tensor *x) { return rp_mul_scalar(rp_add(x, rp_transpose(x, -2, -1)), rp_f64(0.5)); }
static rp_tensor *f_cholesky(rp_tensor **x) {
    rp_linalg_cholesky_options upper = {.struct_size = sizeof upper, .upper = RP_TRUE};
    return rp_add(rp_linalg_cholesky(halves(x[0])), rp_linalg_cholesky(halves(x[0]), &upper));
}
static rp_tensor *f_root(rp_tensor **x) { return rp_linalg_matrix_sqrth(halves(x[0])); }
static rp_tensor *f_eigen(rp_tensor **x) {
    rp_tensor *v, *w = rp_linalg_eigh(halves(x[0]), "L", &v);
    return rp_add(rp_mul(v, v), w);
}
static rp_tensor *f_singular(rp_tensor **x) {
    rp_tensor *s, *vh, *u = rp_linalg_svd(x[0], false, NULL, &s, &vh);
    return rp_add(rp_matmul(rp_mul(u, u), rp_mul(vh, vh)), rp_sum(s));
}

/* Its gradient is that of logits; and one sequence has no way. */
static rp_tensor *f_ctc(rp_tensor **x) {
    rp_tensor *targets = rp_from_data((const int64_t[]){1, 1, 2, 3, 2, 0, 1, 1, 1}, RP_DIMS(3, 3), RP_I64);
    return rp_ctc_loss(rp_log_softmax(x[0], 2), targets, rp_from_data((const int64_t[]){6, 4, 4}, RP_DIMS(3), RP_I64),
                       rp_from_data((const int64_t[]){3, 2, 3}, RP_DIMS(3), RP_I64), 0, 0, true);
}

/* Its steps have no differences; beyond them it is constant (test_ops.c has the slope between). */
static rp_tensor *f_fake_quantize(rp_tensor **x) {
    rp_tensor *scale = rp_full(RP_DIMS(2), rp_f64(0.001)),
              *zero = rp_full(RP_DIMS(2), rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I32));
    return rp_fake_quantize_per_channel_affine(x[0], scale, zero, 0, -2, 3);
}

static const grad_case functions[] = {
    {NULL, "ctc of three sequences", "f(6,3,4)", f_ctc},
    {NULL, "cholesky_factor", "m(3,3)", f_cholesky},
    {NULL, "linalg_matrix_sqrth", "m(3,3)", f_root},
    {NULL, "eigen_pairs", "m(3,3)", f_eigen},
    {NULL, "singular_parts", "f(3,2)", f_singular},
    {NULL, "fake_quantize", "p(2,3)", f_fake_quantize},
    {NULL, "square", "f(2,3)", f_square},
    {NULL, "sign and its operand", "f(2,3)", f_sign},
    {NULL, "detach and its operand", "f(2,3)", f_detach},
    {NULL, "copy_ and what was written", "f(2,3) f(3)", f_copy_},
    {NULL, "fill_ and what was written", "f(2,3)", f_fill_},
    {NULL, "mul_ through a view", "f(2,3) f(3)", f_view_mul_},
    {NULL, "exp_ through views", "f(2,3)", f_view_exp_},
    {NULL, "copy_ into parts", "f(2,3)", f_view_copy_into_plain},
    {NULL, "mul_ below a view", "f(2,3)", f_base_then_view},
    {NULL, "two views written", "f(2,3)", f_view_twice},
    {NULL, "cat of one tensor twice", "f(2,3) f(2,1)", f_cat},
    {NULL, "cross entropy with an ignored row", "f(3,4)", f_cross_entropy},
    {NULL, "expanded in two ways", "f(4,1) f(2,1,3)", f_expand},
};

enum { MOST = 4096 };
static grad_case cases[MOST];
static size_t n_cases;

/* What differences say nothing about: kinks, other types than float64, samples without a gradient. */
static bool is_smooth(const sample *s) {
    for (int k = 0; k < s->n_in; k++) {
        const sample_tensor *t = &s->in[k];
        bool is_float = t->dtype != RP_DTYPE_NONE && ref_is_float(t->dtype);
        if (t->kind == 't' || t->kind == 's' || (is_float && t->dtype != RP_F64)) return false;
    }
    for (unsigned k = 0; k < s->op->schema.n_attrs; k++)
        if (strstr("float16 bfloat16 float32", s->word[k]) &&
            strncmp(s->word[k] + strcspn(s->word[k], "f"), "float", 5) == 0)
            return false;
    return sample_order(s) > 0;
}

static void collect(void) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) cases[n_cases++] = functions[i];
    for (size_t i = 0; i < sample_count(); i++)
        if (is_smooth(sample_at(i))) cases[n_cases++] = (grad_case){.sample = sample_at(i)};
    assert_true(n_cases <= MOST);
}

/* ---------------------------------------------------------------- inputs */

typedef struct inputs {
    size_t n, ndim[MAX_IN], numel[MAX_IN];
    bool leaf[MAX_IN];
    rp_dtype dtype[MAX_IN];
    int64_t size[MAX_IN][RP_MAX_DIMS];
    double value[MAX_IN][MAX_NUMEL];
} inputs;

static void input_make(inputs *in, const sample_tensor *t) {
    size_t k = in->n++;
    ref_value v = sample_values(t, RP_F64, N, (unsigned)k);
    assert_true(v.n <= MAX_NUMEL);
    in->leaf[k] = sample_is_value(t);
    in->dtype[k] = v.dtype;
    in->ndim[k] = (size_t)v.ndim;
    in->numel[k] = (size_t)v.n;
    memcpy(in->size[k], v.size, sizeof v.size);
    memcpy(in->value[k], v.v, (size_t)v.n * sizeof *v.v);
}

static void inputs_make(const grad_case *c, inputs *in) {
    memset(in, 0, sizeof *in);
    if (c->sample) {
        for (int k = 0; k < c->sample->n_in; k++) input_make(in, &c->sample->in[k]);
    } else {
        sample_tensor t;
        for (const char *p = c->operands; *p; p += *p == ' ') {
            p = sample_parse_tensor(p, &t);
            input_make(in, &t);
        }
    }
    ref_reset();
}

/* Leaves with the values (NULL: none); and what the function gets: the leaves, or copies of them with other strides. */
static void inputs_tensors(const inputs *in, bool transposed, rp_tensor **leaves, rp_tensor **x) {
    for (size_t k = 0; k < in->n; k++) {
        leaves[k] = NULL;
        x[k] = ref_from_values(in->dtype[k], in->value[k], (int64_t)in->numel[k], in->size[k], (int)in->ndim[k]);
        if (!in->leaf[k]) continue;
        leaves[k] = x[k];
        rp_set_requires_grad(leaves[k], true);
        if (transposed && in->ndim[k] > 1) x[k] = rp_transpose(rp_clone(rp_transpose(leaves[k], 0, -1)), 0, -1);
    }
}

/* ---------------------------------------------------------------- checks */

static const char *current;

static void require(bool ok) {
    if (ok && !rp_failed()) return;
    char text[1024];
    snprintf(text, sizeof text, "%s", rp_error_message());
    (void)rp_error_take();
    fail_msg("%s: %s", current, text);
}

static void host(rp_tensor *t, double *out) {
    require(!rp_is_error(t) && rp_numel(t) <= MAX_NUMEL * 4);
    require(rp_to_host(t, out, (size_t)rp_numel(t) * sizeof(double)) == RP_OK);
}

/* Fixed weights for the elements of an output. */
static rp_tensor *cotangent(rp_tensor *y) {
    double v[MAX_NUMEL * 4];
    int64_t size[RP_MAX_DIMS], n = rp_numel(y);
    for (size_t d = 0; d < rp_ndim(y); d++) size[d] = rp_size(y, (int64_t)d);
    for (int64_t i = 0; i < n; i++) v[i] = 0.3 + 0.17 * (double)((i * 5) % 7) - (i % 2 ? 0.9 : 0.0);
    return rp_from_data(v, size, rp_ndim(y), RP_F64);
}

/* sum y . y . v over the results: each counts twice, so that no second derivative is 0 by itself. */
static rp_tensor *loss_of(const grad_case *c, rp_tensor **x) {
    rp_tensor *out[MAX_OUT] = {NULL}, *total = NULL;
    size_t n = 1;
    (void)rp_manual_seed(7);
    if (c->sample) {
        require(sample_call(c->sample, x, out) == RP_OK);
        n = c->sample->op->schema.n_outs;
    } else {
        out[0] = c->fn(x);
    }
    for (size_t k = 0; k < n; k++) {
        if (!ref_is_float(rp_dtype_of(out[k]))) continue;
        rp_tensor *y = rp_to_dtype(out[k], RP_F64), *sum = rp_sum(rp_mul(rp_mul(y, y), cotangent(y)));
        total = total ? rp_add(total, sum) : sum;
    }
    require(total && !rp_is_error(total) && rp_requires_grad(total));
    return total;
}

/* The scalar that is differentiated: the loss, or in second order sum_k g_k . u_k with g the gradients of the loss. */
static double objective(const grad_case *c, const inputs *in, bool transposed, bool second,
                        double (*grads)[MAX_NUMEL]) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *leaves[MAX_IN], *x[MAX_IN], *wanted[MAX_IN], *g[MAX_IN];
    size_t at[MAX_IN], n = 0;
    inputs_tensors(in, transposed, leaves, x);
    for (size_t k = 0; k < in->n; k++)
        if (leaves[k]) wanted[n] = leaves[k], at[n++] = k;
    rp_tensor *total = loss_of(c, x);
    if (second) {
        require(rp_grad(&total, 1, wanted, n, NULL,
                        RP_OPTIONS(rp_backward_options, .create_graph = true, .allow_unused = true), g) == RP_OK);
        total = rp_sum(rp_mul(wanted[0], rp_zeros_like(wanted[0]))); /* never a constant */
        for (size_t k = 0; k < n; k++)
            if (g[k]) total = rp_add(total, rp_sum(rp_mul(g[k], cotangent(g[k]))));
    }
    require(!rp_is_error(total));
    double value = rp_item_f64(total);
    if (grads) {
        require(rp_grad(&total, 1, wanted, n, NULL, RP_OPTIONS(rp_backward_options, .allow_unused = true), g) == RP_OK);
        for (size_t k = 0; k < n; k++) {
            const size_t i = at[k];
            memset(grads[i], 0, sizeof grads[i]);
            if (!g[k]) continue;
            require(rp_ndim(g[k]) == in->ndim[i] && (size_t)rp_numel(g[k]) == in->numel[i] &&
                    rp_dtype_of(g[k]) == RP_F64);
            for (size_t d = 0; d < in->ndim[i]; d++) require(rp_size(g[k], (int64_t)d) == in->size[i][d]);
            host(g[k], grads[i]);
        }
    }
    require(rp_scope_end(scope, NULL, 0) == RP_OK);
    return value;
}

/* Of strides that are not row-major there may be no view. */
static bool is_refused(const grad_case *c, const inputs *in) {
    if (!c->sample || c->sample->op->lowering != RP__VIEW) return false;
    rp_tensor *leaves[MAX_IN], *x[MAX_IN], *out[MAX_OUT];
    rp_scope scope = rp_scope_begin();
    inputs_tensors(in, true, leaves, x);
    bool refused = sample_call(c->sample, x, out) != RP_OK;
    (void)rp_error_take();
    (void)rp_scope_end(scope, NULL, 0);
    return refused;
}

static void check(const grad_case *c, bool transposed, bool second) {
    static inputs in;
    static double grads[MAX_IN][MAX_NUMEL];
    char text[400];
    snprintf(text, sizeof text, "%s(%s)%s%s", c->sample ? c->sample->op->name : c->name,
             c->sample ? c->sample->text : c->operands, transposed ? " transposed" : "", second ? " second" : "");
    current = text;
    inputs_make(c, &in);
    if (transposed && is_refused(c, &in)) return;
    (void)objective(c, &in, transposed, second, grads);
    const double h = 1e-5;
    for (size_t k = 0; k < in.n; k++)
        for (size_t i = 0; in.leaf[k] && i < in.numel[k]; i += STEP) {
            double at = in.value[k][i];
            in.value[k][i] = at + h;
            double above = objective(c, &in, transposed, second, NULL);
            in.value[k][i] = at - h;
            double below = objective(c, &in, transposed, second, NULL);
            in.value[k][i] = at;
            double numeric = (above - below) / (2 * h);
            /* Differences of h = 1e-5: about 1e-10 of truncation times the third derivative, and 1e-11 of what is added up of
               rounding. */
            if (!(fabs(numeric - grads[k][i]) <= 2e-7 * (1 + fabs(numeric)) + 4e-11 * fabs(above)))
                fail_msg("%s: input %zu element %zu: gradient %.12g, by differences %.12g", text, k, i, grads[k][i],
                         numeric);
        }
    current = NULL;
}

static void first_derivatives(void **state) {
    (void)state;
    for (size_t i = 0; i < n_cases; i++) check(&cases[i], false, false);
}

static void transposed_inputs(void **state) {
    (void)state;
    for (size_t i = 0; i < n_cases; i++) check(&cases[i], true, false);
}

static void second_derivatives(void **state) {
    (void)state;
    for (size_t i = 0; i < n_cases; i++) check(&cases[i], false, true);
}

static void every_differentiable_row_has_a_case(void **state) {
    (void)state;
    for (size_t i = 0; i < rp__op_builtin_count(); i++) {
        const rp__op *op = rp__op_table_at(i);
        const rp__op *base = op->functional_op ? op->functional_op : op;
        bool found = !base->vjp || base->vjp == rp__row_detach.vjp; /* a derivative of zero */
        /* the gradient of a draw is not the difference of two draws: test_distributions of test_ops.c */
        found = found || strcmp(base->name, "standard_gamma") == 0;
        for (size_t k = 0; k < n_cases && !found; k++)
            found = cases[k].sample ? cases[k].sample->op == op : strcmp(cases[k].name, op->name) == 0;
        if (!found) fail_msg("`%s` has a derivative and no sample that shows it", op->name);
    }
}

int main(int argc, char **argv) {
    collect();
    if (argc > 1) { /* test_gradcheck OP: that op alone; a failure ends the program */
        for (size_t i = 0; i < n_cases; i++)
            for (int k = 0; k < 4 && strcmp(cases[i].sample ? cases[i].sample->op->name : cases[i].name, argv[1]) == 0;
                 k++)
                check(&cases[i], k & 1, k & 2);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_differentiable_row_has_a_case),
        cmocka_unit_test(first_derivatives),
        cmocka_unit_test(transposed_inputs),
        cmocka_unit_test(second_derivatives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
