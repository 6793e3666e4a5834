/* Random numbers: a generator is a seed and a counter. Equal state gives equal numbers, on every device, eager or recorded:
 * a compiled function with dropout draws what the eager one draws, and goes on from where it stopped. */
#include <reprise.h>
#include <stdio.h>

static void noisy(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sum(rp_dropout(in[0], 0.5, true));
}

int main(void) {
    rp_fn fn = {noisy, NULL, 0, "noisy"};
    rp_compiled *f[2] = {rp_plain(fn), rp_compile(fn, NULL)};
    double sums[2][4] = {{0}};
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_ones(RP_DIMS(1000)), *y = NULL;
    for (int mode = 0; mode < 2; mode++) {
        rp_manual_seed(42);
        printf("%s:", mode ? "recorded" : "eager   ");
        for (int call = 0; call < 4; call++) {
            rp_call(f[mode], &x, 1, &y, 1);
            sums[mode][call] = rp_item_f64(y);
            printf(" %g", sums[mode][call]);
        }
        putchar('\n');
    }
    uint64_t seed, offset;
    rp_generator_get(rp_default_generator(rp_cpu()), &seed, &offset);
    printf("seed %llu, %llu counters used\n", (unsigned long long)seed, (unsigned long long)offset);

    /* Back to an earlier state: the same numbers again. */
    rp_generator *g = rp_generator_new(rp_cpu(), 1);
    double a = rp_item_f64(rp_randn(RP_DIMS(1), RP_OPTIONS(rp_randn_options, .generator = g)));
    rp_generator_set(g, 1, 0);
    double b = rp_item_f64(rp_randn(RP_DIMS(1), RP_OPTIONS(rp_randn_options, .generator = g)));
    printf("%g, and again %g\n", a, b);
    rp_generator_release(g);
    rp_scope_end(scope, NULL, 0);
    for (int mode = 0; mode < 2; mode++) {
        rp_compiled_release(f[mode]);
    }
    int wrong = a != b;
    for (int call = 0; call < 4; call++) {
        wrong += sums[0][call] != sums[1][call];
    }
    if (rp_failed()) printf("%s\n", rp_error_message());
    return rp_failed() || wrong;
}
