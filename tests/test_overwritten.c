/* What ops in place write in the middle of a compiled function - gradients that are clipped, parameters that an optimizer steps - is not read by
   what stands behind them as it was before, nor the other way round: equal expressions, identities, sums of scatters and copies for
   convolutions each give what eager execution gives. On the CPU, then on CUDA. */
/* ctest: labels=compile,cuda timeout=300 cost=10 */
#include <reprise_nn.h>

#include "support/each_device.h"

typedef struct world {
    int form;
    rp_tensor *p[2];
} world;

/* The gradient of the first parameter becomes `g`, and is clipped. */
static rp_tensor *clipped(const world *w, rp_tensor *g) {
    rp_set_grad(w->p[0], g);
    rp_clip_grad_norm(w->p, 1, 0.5, 2);
    return rp_grad_of(w->p[0]);
}

static rp_tensor *there_and_back(rp_tensor *x) { return rp_to_dtype(rp_to_dtype(x, RP_F64), RP_F32); }

enum { FORMS = 14 };

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const world *w = ctx;
    rp_tensor *x = rp_detach(w->p[1]), *g, *r = NULL;
    (void)in, (void)n_in, (void)n_out;
    rp_set_grad(w->p[0], NULL);
    rp_set_grad(w->p[1], NULL);
    bool grad = rp_set_grad_enabled(true);
    switch (w->form) {
    case 0: /* the same gradient again, behind a clip of the first */
        rp_backward(rp_sum(rp_mul(w->p[0], w->p[1])), NULL, NULL);
        rp_clip_grad_norm(w->p, 2, 0.5, 2);
        rp_set_grad(w->p[0], NULL);
        rp_backward(rp_sum(rp_mul(w->p[0], w->p[1])), NULL, NULL);
        break;
    case 1:
        (void)clipped(w, rp_sin(x));
        rp_set_grad(w->p[0], NULL);
        r = rp_sin(x);
        break;
    case 2: /* read back through what was made of it before */
        g = rp_sin(x);
        r = rp_to_dtype(g, RP_F64);
        (void)clipped(w, g);
        rp_set_grad(w->p[0], NULL);
        r = rp_to_dtype(r, RP_F32);
        break;
    case 3:
        g = rp_sin(x);
        r = rp_neg(g);
        (void)clipped(w, g);
        rp_set_grad(w->p[0], NULL);
        r = rp_neg(r);
        break;
    case 4: /* made of what is not there any more */ r = there_and_back(clipped(w, there_and_back(x))); break;
    case 5: r = rp_neg(clipped(w, rp_neg(x))); break;
    case 6: r = rp_relu(clipped(w, rp_relu(x))); break;
    case 7: /* ones, zeros and other numbers that are none */
        r = rp_mul(clipped(w, rp_full(RP_DIMS(3), rp_f64(1))), x);
        rp_set_grad(w->p[0], NULL);
        break;
    case 8:
        r = rp_cos(rp_reshape(clipped(w, rp_full(RP_DIMS(3), rp_f64(2))), RP_DIMS(3, 1)));
        rp_set_grad(w->p[0], NULL);
        r = rp_reshape(r, RP_DIMS(3));
        break;
    case 9: /* an expression of it before, and one of it behind */
        g = rp_neg(x);
        r = rp_sin(g);
        g = rp_clone(clipped(w, g));
        rp_set_grad(w->p[0], NULL);
        r = rp_add(rp_mul_scalar(rp_sin(g), rp_f64(2)), r);
        break;
    case 10: /* a scatter before, and its sum with another behind */
        g = rp_exp(x);
        r = rp_slice_scatter(rp_zeros(RP_DIMS(6)), g, 0, 0, 3, 1);
        (void)clipped(w, g);
        rp_set_grad(w->p[0], NULL);
        r = rp_add(r, rp_slice_scatter(rp_zeros(RP_DIMS(6)), rp_cos(x), 0, 3, 6, 1));
        break;
    case 11: /* a scatter into zeros that became others */
        g = rp_zeros(RP_DIMS(6));
        rp_set_grad(w->p[1], NULL);
        r = rp_add(rp_slice_scatter(rp_clone(g), rp_exp(x), 0, 0, 3, 1),
                   rp_slice_scatter(rp_clone(g), rp_cos(x), 0, 3, 6, 1));
        break;
    case 12: /* twice in a row */
        r = rp_clone(clipped(w, rp_exp(x)));
        r = rp_add(r, clipped(w, rp_clone(rp_exp(x))));
        break;
    default:
        rp_backward(rp_sum(w->p[0]), NULL, NULL);
        rp_clip_grad_norm(w->p, 1, 0.5, 2);
        rp_clip_grad_norm(w->p, 1, 0.25, 2);
    }
    (void)rp_set_grad_enabled(grad);
    out[0] = r ? r : rp_detach(rp_clone(w->p[0]));
}

static void make(world *w, int form) {
    *w = (world){.form = form};
    for (int k = 0; k < 2; k++) {
        w->p[k] = rp_from_data((const float[]){0.3f + (float)k, -1, 2 - (float)k}, RP_DIMS(3), RP_F32);
        (void)rp_set_requires_grad(w->p[k], true);
    }
}

static void test_clipped(void **state) {
    (void)state;
    static const char *const backends[] = {"aot_eager", "cudagraphs", "fused"};
    for (int form = 0; form < FORMS; form++) {
        for (int b = 0; b < 3; b++) {
            rp_scope scope = rp_scope_begin();
            world eager, compiled;
            make(&eager, form);
            make(&compiled, form);
            rp_compiled *f = rp_compile((rp_fn){body, &compiled, sizeof compiled, "clipped"},
                                        RP_OPTIONS(rp_compile_options, .backend = backends[b]));
            for (int call = 0; call < 4; call++) {
                rp_tensor *x, *y;
                body(&eager, NULL, 0, &x, 1);
                OK(rp_call(f, NULL, 0, &y, 1));
                same(x, y);
                for (int k = 0; k < 2; k++) {
                    rp_tensor *want = rp_grad_of(eager.p[k]), *got = rp_grad_of(compiled.p[k]);
                    assert_true(!want == !got);
                    if (want) same(want, got);
                }
            }
            rp_compiled_release(f);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        }
    }
}

/* ---- a convolution reads a copy of its weight in another layout: not of the weight before a step */

typedef struct trainer {
    rp_tensor *weight;
    rp_optimizer *optimizer;
} trainer;

static void two_steps(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const trainer *t = ctx;
    (void)n_in, (void)n_out;
    for (int k = 0; k < 2; k++) {
        rp_tensor *y = rp_conv2d(in[0], t->weight, NULL);
        rp_backward(rp_sum(rp_mul(rp_to_dtype(y, RP_F32), rp_cos(rp_to_dtype(y, RP_F32)))), NULL, NULL);
        rp_optimizer_step(t->optimizer);
        rp_optimizer_zero_grad(t->optimizer, true);
    }
    out[0] = rp_detach(rp_conv2d(in[0], t->weight, NULL));
}

static void test_stepped(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *w = rp_mul_scalar(rp_randn(RP_DIMS(64, 64, 3, 3)), rp_f64(0.05)), *x = rp_randn(RP_DIMS(2, 64, 8, 8));
    trainer t[2];
    for (int k = 0; k < 2; k++) {
        t[k].weight = rp_to_dtype(w, RP_F16);
        (void)rp_set_requires_grad(t[k].weight, true);
        t[k].optimizer = rp_sgd(&t[k].weight, 1, 0.01, NULL);
    }
    x = rp_to_dtype(x, RP_F16);
    rp_compiled *f = rp_compile((rp_fn){two_steps, &t[1], sizeof t[1], "two steps"}, NULL);
    for (int call = 0; call < 3; call++) {
        rp_tensor *a, *b;
        two_steps(&t[0], &x, 1, &a, 1);
        OK(rp_call(f, &x, 1, &b, 1));
        same(a, b);
        same(rp_detach(t[0].weight), rp_detach(t[1].weight));
    }
    rp_compiled_release(f);
    for (int k = 0; k < 2; k++) rp_optimizer_release(t[k].optimizer);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_clipped, begin, end),
        cmocka_unit_test_setup_teardown(test_stepped, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
