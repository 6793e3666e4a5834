/* Control flow that is recorded: rp_cond and rp_while take functions and become one node of a trace each, so a compiled
 * function decides by data at every call; rp_checkpoint keeps no intermediates and computes them again for the backward. */
#include <reprise.h>
#include <stdio.h>

static void doubled(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_i64(2));
}

static void negated(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_neg(in[0]);
}

static void below_100(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_lt_scalar(in[0], rp_i64(100)); /* one bool */
}

/* x < 0 ? -x : x, then doubled until it is at least 100. */
static void climb(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *positive = NULL;
    rp_fn negate = {negated, NULL, 0, "negated"}, same = {doubled, NULL, 0, "doubled"},
          go_on = {below_100, NULL, 0, "below"};
    rp_cond(rp_lt_scalar(in[0], rp_i64(0)), negate, same, in, 1, &positive, 1);
    rp_while(go_on, same, &positive, 1, 0, out);
}

static void wave(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sin(rp_exp(rp_sin(in[0])));
}

int main(void) {
    rp_compiled *f = rp_compile((rp_fn){climb, NULL, 0, "climb"}, NULL);
    const double starts[] = {3, -7, 60, -60}, expected[] = {192, 112, 120, 120};
    int wrong = 0;
    for (int i = 0; i < 4; i++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_full(RP_NO_DIMS, rp_f64(starts[i])), *y = NULL;
        rp_call(f, &x, 1, &y, 1);
        double value = rp_item_f64(y);
        printf("%g climbs to %g\n", starts[i], value);
        wrong += value != expected[i];
        rp_scope_end(scope, NULL, 0);
    }
    rp_compiled_release(f);

    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_full(RP_DIMS(3), rp_f64(0.5)), *y = NULL;
    rp_set_requires_grad(x, true);
    rp_checkpoint((rp_fn){wave, NULL, 0, "wave"}, &x, 1, &y, 1);
    rp_backward(rp_sum(y), NULL, NULL);
    rp_tensor *g = rp_grad_of(x);
    if (g) printf("gradient through a checkpoint: %.6f\n", rp_item_f64(rp_select(g, 0, 0)));
    rp_scope_end(scope, NULL, 0);
    if (rp_failed()) printf("%s\n", rp_error_message());
    return rp_failed() || wrong;
}
