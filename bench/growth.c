/* What must not grow: a function called with thousands of sizes, and programs of thousands of launches, writes or inputs.
   growth [sizes | long | wide]: all, or one of them. Ends with 1 where a bound is missed.

     sizes  A perceptron of two layers, with at most 8 specialisations, is called with the sizes 1 to 4000, each once, in an order by
            chance. The calls 100 to 199 and the last 100 take sizes that lie side by side, so that they have the same work to do:
            the latter may take 1.2 times as long in the median, each 2 ms, and the process 300 MB. Times are those of all its
            threads on processors: other processes do not count.
     long   A recurrent function that applies one weight at each step, and its gradient: what its first call takes, in which it is
            recorded and compiled, what the second takes, with which its launches become a graph, a step, and a later one.
     wide   A function that writes each of its arguments and then, by a value that all of the second writes read, once more; the sum of as many
            numbers, one behind the other; and the gradient of as many leaves: what a write, a number and a leaf take of the processors. Sixteen
            times as many may take MOST_WIDER times as long each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <reprise_nn.h>

static double now(clockid_t clock) {
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* MB, the most so far. */
static double peak_memory(void) {
    char line[256];
    double kilobytes = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "VmHWM:", 6) == 0) kilobytes = strtod(line + 6, NULL);
    }
    if (f) (void)fclose(f);
    return kilobytes / 1000;
}

/* ---- sizes */

enum { SIZES = 4000, WINDOW = 100, EARLY = 100, LATE = SIZES - WINDOW, MOST_MB = 300 };
static const double most_ratio = 1.2, most_ms = 2;

typedef struct layers {
    rp_tensor *w1, *b1, *w2, *b2;
} layers;

static void perceptron(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const layers *l = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_linear(rp_relu(rp_linear(in[0], l->w1, l->b1)), l->w2, l->b2);
}

static void shuffle(int *of, int n) {
    static unsigned seed = 1;
    for (int k = n - 1; k > 0; k--) {
        seed = seed * 1664525u + 1013904223u;
        const int at = (int)(seed >> 8) % (k + 1), kept = of[k];
        of[k] = of[at];
        of[at] = kept;
    }
}

/* Every size once. Each step of 40 sizes gives one to either window. */
static void choose_sizes(int *size) {
    enum { STEP = SIZES / WINDOW };
    int n = 0, rest[SIZES];
    for (int k = 0; k < SIZES; k++) {
        if (k % STEP == STEP / 2)
            size[EARLY + k / STEP] = k + 1;
        else if (k % STEP == STEP / 2 + 1)
            size[LATE + k / STEP] = k + 1;
        else
            rest[n++] = k + 1;
    }
    shuffle(rest, n);
    shuffle(size + EARLY, WINDOW);
    shuffle(size + LATE, WINDOW);
    memcpy(size, rest, EARLY * sizeof *size);
    memcpy(size + EARLY + WINDOW, rest + EARLY, (size_t)(n - EARLY) * sizeof *size);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(const double *of, size_t n) { /* at most WINDOW, and even */
    double sorted[WINDOW];
    memcpy(sorted, of, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    return (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static bool run_sizes(void) {
    static double work[SIZES];
    static int size[SIZES];
    rp_scope scope = rp_scope_begin();
    layers l = {rp_randn(RP_DIMS(32, 8)), rp_randn(RP_DIMS(32)), rp_randn(RP_DIMS(8, 32)), rp_randn(RP_DIMS(8))};
    rp_compiled *f = rp_compile((rp_fn){perceptron, &l, sizeof l, "perceptron"},
                                RP_OPTIONS(rp_compile_options, .fullgraph = true, .cache_limit = 8));
    choose_sizes(size);
    for (int k = 0; k < SIZES && !rp_failed(); k++) {
        rp_scope call = rp_scope_begin();
        rp_tensor *x = rp_randn(RP_DIMS(size[k], 8)), *y = NULL;
        const double worked = now(CLOCK_PROCESS_CPUTIME_ID);
        (void)rp_call(f, &x, 1, &y, 1);
        work[k] = 1e3 * (now(CLOCK_PROCESS_CPUTIME_ID) - worked);
        rp_scope_end(call, NULL, 0);
    }
    const double early = median(work + EARLY, WINDOW), late = median(work + LATE, WINDOW), mb = peak_memory();
    double longest = 0;
    for (int k = LATE; k < SIZES; k++) longest = fmax(longest, work[k]);
    const bool held = !rp_failed() && late <= most_ratio * early && longest <= most_ms && mb <= MOST_MB;
    printf("%d sizes: %.0f MB, calls 100 to 199 %.3f ms, the last 100 %.3f ms (%.2f times), each at most %.3f ms%s\n",
           SIZES, mb, early, late, late / early, longest, held ? "" : ": too much");
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    return held;
}

/* ---- long programs */

typedef struct stack {
    rp_tensor *weight;
    int steps;
} stack;

static void gradient(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    stack *s = ctx;
    rp_tensor *x = in[0];
    (void)n_in, (void)n_out;
    for (int k = 0; k < s->steps; k++) x = rp_tanh(rp_matmul(x, s->weight));
    rp_tensor *loss = rp_sum(rp_mul(x, x));
    rp_grad(&loss, 1, &s->weight, 1, NULL, NULL, out);
}

static bool run_long(void) {
    static const int steps[] = {100, 200, 400, 800, 1600};
    for (size_t k = 0; k < sizeof steps / sizeof *steps && !rp_failed(); k++) {
        rp_scope scope = rp_scope_begin();
        stack s = {rp_mul_scalar(rp_randn(RP_DIMS(16, 16)), rp_f64(0.2)), steps[k]};
        rp_set_requires_grad(s.weight, true);
        rp_compiled *f =
            rp_compile((rp_fn){gradient, &s, sizeof s, "stack"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
        rp_tensor *x = rp_randn(RP_DIMS(4, 16)), *y = NULL;
        enum { CALLS = 22 };
        double ms[CALLS];
        for (int call = 0; call < CALLS; call++) {
            const double begin = now(CLOCK_MONOTONIC);
            (void)rp_call(f, &x, 1, &y, 1);
            ms[call] = 1e3 * (now(CLOCK_MONOTONIC) - begin);
        }
        printf("%4d steps: first call %7.1f ms (%.3f a step), second %7.1f ms (%.3f a step), later ones %.2f ms\n",
               s.steps, ms[0], ms[0] / s.steps, ms[1], ms[1] / s.steps, median(ms + 2, CALLS - 2));
        rp_compiled_release(f);
        rp_scope_end(scope, NULL, 0);
    }
    return !rp_failed();
}

/* ---- wide programs */

enum { NARROW = 750, WIDE = 16 * NARROW, MOST_WIDER = 4 };

static void writes(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_out;
    rp_tensor *total = rp_sum(in[0]);
    for (size_t k = 0; k < n_in; k++) rp_mul_(in[k], total);
    for (size_t k = 0; k < n_in; k++) rp_add_(in[k], total);
    out[0] = total;
}

static void numbers(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_out;
    out[0] = in[0];
    for (size_t k = 1; k < n_in; k++) out[0] = rp_add(out[0], in[k]);
}

/* ms of the call with which the function is compiled, and of a later one. */
static void time_function(rp_fn fn, rp_tensor *const *in, size_t n, double *compiled, double *later) {
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    rp_tensor *y = NULL;
    double ms[3];
    for (unsigned call = 0; call < 3; call++) {
        const double begin = now(CLOCK_PROCESS_CPUTIME_ID);
        (void)rp_call(f, in, n, &y, 1);
        ms[call] = 1e3 * (now(CLOCK_PROCESS_CPUTIME_ID) - begin);
    }
    *compiled = ms[0] + ms[1]; /* recorded, and compiled */
    *later = ms[2];
    rp_compiled_release(f);
}

static double time_gradient(rp_tensor *const *leaf, size_t n, rp_tensor **grad) {
    rp_tensor *sum = rp_sum(leaf[0]);
    for (size_t k = 0; k < n; k++) rp_set_requires_grad(leaf[k], true);
    for (size_t k = 0; k < n; k++) sum = rp_add(sum, rp_sum(rp_sin(leaf[k])));
    const double begin = now(CLOCK_PROCESS_CPUTIME_ID);
    (void)rp_grad(&sum, 1, leaf, n, NULL, NULL, grad);
    return 1e3 * (now(CLOCK_PROCESS_CPUTIME_ID) - begin);
}

static bool run_wide(void) {
    static rp_tensor *in[WIDE], *grad[WIDE];
    enum { SHAPES = 3 };
    double least[SHAPES] = {0};
    bool held = true;
    for (size_t n = NARROW; n <= WIDE && !rp_failed(); n *= 2) {
        rp_scope scope = rp_scope_begin();
        double each[SHAPES], later;
        for (size_t k = 0; k < n; k++) in[k] = rp_ones(RP_DIMS(16));
        time_function((rp_fn){writes, NULL, 0, "writes"}, in, n, &each[0], &later);
        for (size_t k = 0; k < n; k++) in[k] = rp_ones(RP_DIMS(16));
        each[1] = time_gradient(in, n, grad);
        printf(
            "%5zu written twice: compiled in %7.1f ms (%.3f each), a later call %.2f ms; gradients of as many %6.1f ms (%.4f each)",
            n, each[0], each[0] / (double)n, later, each[1], each[1] / (double)n);
        for (size_t k = 0; k < n; k++) in[k] = rp_sum(rp_detach(in[k]));
        time_function((rp_fn){numbers, NULL, 0, "numbers"}, in, n, &each[2], &later);
        printf("; a sum of as many numbers in %6.1f ms (%.4f each)\n", each[2], each[2] / (double)n);
        for (unsigned k = 0; k < SHAPES; k++) {
            each[k] /= (double)n;
            if (n == NARROW) least[k] = each[k];
            held = held && each[k] <= MOST_WIDER * least[k];
        }
        rp_scope_end(scope, NULL, 0);
    }
    if (!held) printf("too much: each may take %d times as long as of the fewest\n", MOST_WIDER);
    return held && !rp_failed();
}

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : NULL;
    if (argc > 2 || (only && strcmp(only, "sizes") != 0 && strcmp(only, "long") != 0 && strcmp(only, "wide") != 0)) {
        (void)fputs("usage: growth [sizes | long | wide]\n", stderr);
        return 2;
    }
    bool held = true; /* first what asks for the peak of the process's memory */
    if (!only || strcmp(only, "sizes") == 0) held = run_sizes();
    if (!only || strcmp(only, "long") == 0) held = run_long() && held;
    if (!only || strcmp(only, "wide") == 0) held = run_wide() && held;
    if (rp_failed()) (void)fprintf(stderr, "growth: %s\n", rp_error_message());
    return held ? 0 : 1;
}
