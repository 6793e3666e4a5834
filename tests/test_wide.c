/* Programs that are wide in one thing: a kernel holds only so many sums, scans, values of a row, live values, constants, operands,
   results, gathers, windows, draws. Whatever it is, the compiler splits where a kernel would hold too much, and what is compiled gives
   what eager calls give, bit for bit; so do gradients. On the CPU, then on CUDA. */
/* ctest: labels=compile,cuda timeout=400 cost=20 */
#include <time.h>

#include <reprise_nn.h>

#include "support/each_device.h"

enum { MOST = 130, ROWS = 3, COLUMNS = 40 };

typedef struct wide {
    rp_tensor *(*of)(const struct wide *w, rp_tensor *x);
    const char *name;
    int n;
    rp_dtype dtype;
    rp_tensor *other[MOST]; /* as x, retained */
    rp_tensor *place;       /* indices of rows */
} wide;

static rp_tensor *times(rp_tensor *x, int i) { return rp_mul_scalar(x, rp_f64(1 + 0.01 * i)); }

static rp_tensor *sums(const wide *w, rp_tensor *x) {
    rp_tensor *s = x;
    for (int i = 0; i < w->n; i++) {
        rp_tensor *deviation = rp_std(times(x, i), RP_DIMS(-1), RP_OPTIONS(rp_std_options, .keepdim = true));
        s = rp_add(rp_mul_scalar(s, rp_f64(0.5)), rp_mul(deviation, x));
    }
    return s;
}

static rp_tensor *sums_of_several_types(const wide *w, rp_tensor *x) {
    rp_tensor *s = rp_to_dtype(x, RP_F64);
    for (int i = 0; i < w->n; i++) {
        rp_tensor *y = rp_to_dtype(times(x, i), i % 3 ? RP_F64 : RP_F32);
        rp_tensor *r = i % 4 == 3 ? rp_argmax(y, -1, true) : rp_sum(y, RP_DIMS(-1), true);
        s = rp_add(rp_mul_scalar(s, rp_f64(0.5)), r);
    }
    return s;
}

static rp_tensor *sums_over_both(const wide *w, rp_tensor *x) {
    rp_tensor *s = x;
    for (int i = 0; i < w->n; i++) {
        s = rp_add(rp_mul_scalar(s, rp_f64(0.5)), rp_sum(times(x, i), RP_DIMS(i % 2 ? 0 : 1), true));
    }
    return s;
}

static rp_tensor *scans(const wide *w, rp_tensor *x) {
    rp_tensor *s = x;
    for (int i = 0; i < w->n; i++) {
        s = rp_add(rp_mul_scalar(s, rp_f64(0.5)), rp_cumsum(times(x, i), -1));
    }
    return s;
}

static rp_tensor *values_of_rows(const wide *w, rp_tensor *x) {
    rp_tensor *r = rp_amax(x, RP_DIMS(-1), true), *kept[MOST], *s = x;
    for (int i = 0; i < w->n; i++) kept[i] = rp_sin(times(r, i));
    for (int i = w->n; i-- > 0;) s = rp_add(rp_mul(s, kept[i]), kept[i]);
    return s;
}

static rp_tensor *live_values(const wide *w, rp_tensor *x) {
    rp_tensor *kept[MOST], *s = x;
    for (int i = 0; i < w->n; i++) kept[i] = rp_sin(times(x, i));
    for (int i = w->n; i-- > 0;) s = rp_add(rp_mul(s, kept[i]), kept[i]);
    return s;
}

static rp_tensor *constants(const wide *w, rp_tensor *x) {
    rp_tensor *s = x;
    for (int i = 0; i < w->n; i++) {
        s = rp_add_scalar(rp_mul_scalar(s, rp_f64(0.9 + 0.001 * i)), rp_f64(0.013 * i));
        s = rp_clamp(s, rp_f64(-7.5 - i), rp_f64(9.5 + i));
    }
    return s;
}

static rp_tensor *operands(const wide *w, rp_tensor *x) {
    rp_tensor *s = x;
    for (int i = 0; i < w->n; i++) s = rp_add(rp_mul_scalar(s, rp_f64(0.5)), w->other[i]);
    return s;
}

static rp_tensor *gathers(const wide *w, rp_tensor *x) {
    rp_tensor *s = x;
    for (int i = 0; i < w->n; i++) {
        s = rp_add(rp_mul_scalar(s, rp_f64(0.5)), rp_index_select(w->other[i], 0, w->place));
    }
    return s;
}

static rp_tensor *windows(const wide *w, rp_tensor *x) {
    rp_tensor *s = x;
    for (int i = 0; i < w->n; i++) {
        rp_tensor *image = rp_view(times(x, i), RP_DIMS(1, 1, ROWS, COLUMNS));
        rp_tensor *pooled = rp_avg_pool2d(image, RP_DIMS(3, 3), RP_DIMS(1, 1), RP_DIMS(1, 1));
        s = rp_add(rp_mul_scalar(s, rp_f64(0.5)), rp_view(pooled, RP_DIMS(ROWS, COLUMNS)));
    }
    return s;
}

static rp_tensor *draws(const wide *w, rp_tensor *x) {
    rp_tensor *s = x;
    for (int i = 0; i < w->n; i++) s = rp_add(rp_mul_scalar(s, rp_f64(0.5)), rp_dropout(x, 0.3, true));
    return s;
}

static rp_tensor *pieces(const wide *w, rp_tensor *x) {
    rp_tensor *of[MOST];
    for (int i = 0; i < w->n; i++) of[i] = rp_exp(rp_mul_scalar(x, rp_f64(-0.01 * i)));
    return rp_sin(rp_cat(of, (size_t)w->n, 0));
}

static rp_tensor *products(const wide *w, rp_tensor *x) {
    rp_tensor *s = rp_matmul(x, rp_transpose(x, 0, 1));
    for (int i = 0; i < w->n; i++) {
        s = rp_add(rp_mul_scalar(s, rp_f64(0.5)), rp_relu(rp_matmul(x, rp_transpose(w->other[i], 0, 1))));
    }
    return s;
}

static rp_tensor *softmaxes(const wide *w, rp_tensor *x) {
    rp_tensor *s = x;
    for (int i = 0; i < w->n; i++)
        s = rp_add(rp_softmax(times(s, i), -1), rp_layer_norm(x, RP_DIMS(COLUMNS), NULL, NULL, 1e-5));
    return s;
}

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const wide *w = ctx;
    (void)n_in, (void)n_out;
    out[0] = w->of(w, in[0]);
}

/* The result and the gradient of the sum of its squares. */
static void with_gradient(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const wide *w = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *x = rp_mul_scalar(in[0], rp_f64(1)), *y = w->of(w, x);
    rp_tensor *loss = rp_sum(rp_mul(y, y));
    (void)rp_grad(&loss, 1, &x, 1, NULL, NULL, &out[1]);
    out[0] = rp_detach(y);
}

static void many_results(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in;
    for (size_t i = 0; i < n_out; i++) out[i] = rp_sin(times(in[0], (int)i));
}

/* ---- eager and compiled */

static rp_tensor *filled(rp_dtype dtype) {
    return rp_randn(RP_DIMS(ROWS, COLUMNS), RP_OPTIONS(rp_randn_options, .dtype = dtype));
}

static void compare(rp_fn fn, rp_tensor *x, size_t n_out, const char *name, int n) {
    rp_tensor *eager[MOST] = {NULL}, *compiled[MOST] = {NULL};
    rp_compiled *f = rp_compile(fn, NULL);
    for (int call = 0; call < 2; call++) {
        rp_scope scope = rp_scope_begin();
        OK(rp_manual_seed(3));
        fn.body(fn.ctx, &x, 1, eager, n_out);
        FINE();
        OK(rp_manual_seed(3));
        if (rp_call(f, &x, 1, compiled, n_out)) fail_msg("%s, %d wide: %s", name, n, rp_error_message());
        for (size_t i = 0; i < n_out; i++) {
            if (rp_item_i64(rp_all(rp_isclose(eager[i], compiled[i], 0, 0, true))) != 1)
                fail_msg("%s, %d wide: result %zu is another", name, n, i);
        }
        FINE();
        OK(rp_scope_end(scope, NULL, 0));
    }
    rp_compiled_release(f);
}

static const struct {
    const char *name;
    rp_tensor *(*of)(const wide *w, rp_tensor *x);
} forms[] = {{"sums", sums},
             {"sums of several types", sums_of_several_types},
             {"sums over both", sums_over_both},
             {"scans", scans},
             {"values of rows", values_of_rows},
             {"live values", live_values},
             {"constants", constants},
             {"operands", operands},
             {"gathers", gathers},
             {"windows", windows},
             {"draws", draws},
             {"pieces", pieces},
             {"products", products},
             {"softmaxes", softmaxes}};
enum { FORMS = sizeof forms / sizeof *forms };

/* The emulator compiles every kernel by the system's compiler: fewer sizes there. */
static const int sizes[] = {40, 11, MOST};
static unsigned n_sizes(void) { return device.type == RP_DEVICE_CPU ? 3 : test_cuda_is_real() ? 2 : 1; }

static void test_forms(bool gradient) {
    for (unsigned k = 0; k < FORMS * n_sizes() * 2; k++) {
        const unsigned form = k / 2 % FORMS;
        /* there each form has gradients in one of the types, and results alone in f32 where these are the f64's; one has them in f64 */
        if (device.type != RP_DEVICE_CPU &&
            !test_cuda_takes(form + (k % 2 != gradient), k % 2 && !gradient ? FORMS : 2))
            continue;
        wide w = {.of = forms[form].of, .n = sizes[k / 2 / FORMS], .dtype = k % 2 ? RP_F64 : RP_F32};
        rp_scope scope = rp_scope_begin();
        const int64_t rows[ROWS] = {2, 0, 1};
        w.place = rp_from_data(rows, RP_DIMS(ROWS), RP_I64);
        for (int i = 0; i < w.n; i++) w.other[i] = filled(w.dtype);
        rp_tensor *x = filled(w.dtype);
        if (gradient) OK(rp_set_requires_grad(x, true));
        compare((rp_fn){gradient ? with_gradient : body, &w, sizeof w, "wide"}, x, gradient ? 2 : 1, forms[form].name,
                w.n);
        OK(rp_scope_end(scope, NULL, 0));
    }
}
static void test_forward(void **state) {
    (void)state;
    test_forms(false);
}
static void test_gradients(void **state) {
    (void)state;
    test_forms(true);
}

static void test_results(void **state) {
    (void)state;
    for (unsigned k = 0; k < n_sizes(); k++) {
        compare((rp_fn){many_results, NULL, 0, "results"}, filled(RP_F32), (size_t)sizes[k], "results", sizes[k]);
    }
}

/* Long formulas of what is expanded along the rows are values of a row as well, all of them but the last product. */
static void of_expanded(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *e = rp_expand(rp_slice(in[0], 1, 0, 1, 1), RP_DIMS(ROWS, COLUMNS));
    out[0] = rp_sum(rp_mul(rp_mul(rp_special_i0e(e), rp_special_i1e(e)), in[0]), RP_DIMS(1), false);
}
static void test_expanded(void **state) {
    (void)state;
    if (device.type != RP_DEVICE_CPU) skip(); /* the limit is the interpreter's */
    compare((rp_fn){of_expanded, NULL, 0, "expanded"}, filled(RP_F64), 1, "expanded", 1);
}

/* ---- programs of very many ops that have nothing to do with each other, and optimizers of as many parameters: what is compiled for them
   grows as they do. (Compared with each other, four times as many take sixteen times as long, and did.) */

typedef struct many {
    int n;
    rp_tensor **of;
    rp_optimizer *optimizer;
} many;

static void writes_each(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const many *m = ctx;
    (void)in, (void)n_in, (void)out, (void)n_out;
    for (int i = 0; i < m->n; i++) rp_copy_(m->of[i], rp_sin(rp_mul_scalar(m->of[i], rp_f64(0.5))));
}
static void meets(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const many *m = ctx;
    rp_tensor **t = malloc((size_t)m->n * sizeof *t);
    (void)in, (void)n_in, (void)n_out;
    for (int i = 0; i < m->n; i++) t[i] = rp_sum(rp_sin(m->of[i]));
    for (int k = m->n; k > 1; k = (k + 1) / 2)
        for (int i = 0; i < k / 2; i++) t[i] = rp_add(t[i], t[(k + 1) / 2 + i]);
    out[0] = t[0];
    free(t);
}
static void steps(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const many *m = ctx;
    (void)in, (void)n_in, (void)out, (void)n_out;
    rp_optimizer_step(m->optimizer);
}

static many make_many(int n, bool trained) {
    many m = {.n = n, .of = malloc((size_t)n * sizeof *m.of)};
    for (int i = 0; i < n; i++) {
        m.of[i] = rp_full(RP_DIMS(3 + i % 5), rp_f64(0.25 + 0.001 * i));
        if (!trained) continue;
        rp_set_requires_grad(m.of[i], true);
        rp_set_grad(m.of[i], rp_full(RP_DIMS(3 + i % 5), rp_f64(1)));
    }
    if (trained) m.optimizer = rp_sgd(m.of, (size_t)n, 0.1, NULL);
    return m;
}

/* Seconds of this process that three calls take, compiling in the first two. The values are compared with those of eager calls. */
static double seconds_of(rp_body *of, bool trained, size_t n_out, int n) {
    rp_scope scope = rp_scope_begin();
    many a = make_many(n, trained), b = make_many(n, trained);
    rp_tensor *x = NULL, *y = NULL;
    rp_set_grad_enabled(false);
    rp_compiled *f = rp_compile((rp_fn){of, &a, sizeof a, "many"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    double taken = 0;
    for (int call = 0; call < 3; call++) {
        const clock_t before = clock();
        assert_int_equal(rp_call(f, NULL, 0, &x, n_out), RP_OK);
        taken += (double)(clock() - before) / CLOCKS_PER_SEC;
        of(&b, NULL, 0, &y, n_out);
    }
    if (n_out) same(x, y);
    for (int i = 0; i < n; i += 97) same(rp_detach(a.of[i]), rp_detach(b.of[i]));
    rp_compiled_release(f);
    rp_optimizer_release(a.optimizer);
    rp_optimizer_release(b.optimizer);
    free(a.of);
    free(b.of);
    rp_set_grad_enabled(true);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    return taken;
}

static void test_many(void **state) {
    (void)state;
    if (device.type != RP_DEVICE_CPU) skip(); /* the compiler is the same */
    static const struct {
        rp_body *body;
        bool trained;
        size_t n_out;
    } kinds[] = {{writes_each, false, 0}, {meets, false, 1}, {steps, true, 0}};
    for (unsigned k = 0; k < 3; k++) {
        const double few = seconds_of(kinds[k].body, kinds[k].trained, kinds[k].n_out, 2000),
                     more = seconds_of(kinds[k].body, kinds[k].trained, kinds[k].n_out, 8000);
        print_message("form %u: %.3f s for 2000, %.3f s for 8000\n", k, few, more);
        if (more > 12 * few + 0.5) fail_msg("form %u: %.3f s for 2000, %.3f s for 8000", k, few, more);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_forward, begin, end),
        cmocka_unit_test_setup_teardown(test_gradients, begin, end),
        cmocka_unit_test_setup_teardown(test_results, begin, end),
        cmocka_unit_test_setup_teardown(test_expanded, begin, end),
        cmocka_unit_test_setup_teardown(test_many, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
