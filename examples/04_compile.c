/* rp_compile: the first call of a function records it, later calls play it back, fused. Afterwards the compiler says what it
 * did and why. Another size is recorded with that size as a symbol. */
#include <reprise.h>
#include <stdio.h>

static void normalise(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_gelu(rp_mul_scalar(in[0], rp_f64(1.5)));
    rp_tensor *sum = rp_sum(x, RP_DIMS(-1), true);
    out[0] = rp_softmax(rp_sub(x, sum, RP_OPTIONS(rp_sub_options, .alpha = rp_f64(0.01))), -1);
}

int main(void) {
    rp_fn fn = {normalise, NULL, 0, "normalise"};
    rp_compiled *fast = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    rp_compiled *plain = rp_plain(fn);
    double largest = 0;
    for (int64_t rows = 4; rows <= 32; rows *= 2) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_randn(RP_DIMS(rows, 100)), *a = NULL, *b = NULL;
        rp_call(plain, &x, 1, &a, 1);
        for (int call = 0; call < 3; call++) {
            rp_call(fast, &x, 1, &b, 1);
            double d = rp_item_f64(rp_amax(rp_abs(rp_sub(a, b)), RP_NO_DIMS, false));
            if (!(d <= largest)) largest = d;
        }
        rp_scope_end(scope, NULL, 0);
    }
    printf("largest difference to eager: %g\n", largest);
    for (size_t i = 0; i < rp_explain_count(fast); i++) {
        rp_explain_entry e;
        if (!rp_explain_get(fast, i, &e)) printf("%-15s %s (%lld)\n", e.kind, e.message, (long long)e.count);
    }
    rp_compiled_release(fast);
    rp_compiled_release(plain);
    if (rp_failed()) printf("%s\n", rp_error_message());
    return rp_failed() || largest != 0;
}
