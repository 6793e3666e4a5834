/* Our half of `make bench-gpu`: prints one line a measurement, WORK<TAB>MODE<TAB>host us<TAB>host us that a tenth of the
 * calls stays below<TAB>latency us<TAB>period us<TAB>first s<TAB>GB/s (0 where it means nothing), or
 * WORK<TAB>MODE<TAB>reason. bench/gpu_peer.py measures the same works with PyTorch and prints the table. `gpu_reprise source
 * f32|bf16` prints the CUDA C of the large rows, for scripts/sass.sh. `gpu_reprise first` ends after the first result of a
 * graph and prints the seconds since the
 * process was started, which $REPRISE_BENCH_START holds in seconds since 1970. */
#include "measure.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double SECONDS = 0.8; /* a measurement */

struct work {
    const char *name;
    rp_fn fn;
    rp_tensor *in[2], *moved[2]; /* moved: other tensors of the same sizes */
    size_t n_in;
    rp_tensor *const *params;
    size_t n_params;
    double bytes; /* read and written at least; 0: not stated */
};

enum { SOME = 16, MANY = 64 };

struct runner {
    rp_compiled *f;
    rp_graph *graph;
    const struct work *w;
    unsigned turn;
    bool moves;                    /* every call gets other tensors than the last */
    rp_tensor *(*places)[MANY][2]; /* not NULL: the first n_places of these in turn */
    unsigned n_places;
};

static rp_status run(void *ctx) {
    struct runner *r = ctx;
    if (r->graph) return rp_graph_replay(r->graph);
    rp_tensor *out = NULL;
    if (r->places) return rp_call(r->f, (*r->places)[r->turn++ % r->n_places], r->w->n_in, &out, 1);
    return rp_call(r->f, r->moves && r->turn++ % 2 ? r->w->moved : r->w->in, r->w->n_in, &out, 1);
}

static rp_status failure(void) { return rp_failed() ? rp_error_status() : RP_OK; }

static void report(const struct work *w, const char *mode, rp_status status, const struct cli_times *t, double first) {
    if (status) {
        char reason[400];
        snprintf(reason, sizeof reason, "%s: %s", rp_status_name(status), rp_error_message());
        reason[strcspn(reason, "\n\t")] = 0;
        rp_error_take();
        printf("%s\t%s\t%s\n", w->name, mode, reason);
    } else {
        double rate = w->bytes > 0 ? w->bytes / t->period_us * 1e-3 : 0;
        printf("%s\t%s\t%.3f\t%.3f\t%.3f\t%.3f\t%.6f\t%.1f\n", w->name, mode, t->host_us, t->host_low_us, t->latency_us,
               t->period_us, first, rate);
    }
    fflush(stdout);
}

enum mode { EAGER, RAW_GRAPH, GRAPHED, CUDAGRAPHS, FUSED, FUSED_MOVED, MODES };
static const char *const names[MODES] = {"eager",      "raw graph", "graphed callables",
                                         "cudagraphs", "fused",     "fused, moved input"};

/* The body as a raw capture of the current work, after one eager run. */
static rp_status capture(struct runner *r, rp_device device) {
    const struct work *w = r->w;
    rp_tensor *out = NULL;
    w->fn.body(w->fn.ctx, w->in, w->n_in, &out, 1);
    rp_status status = failure();
    r->graph = rp_graph_new();
    if (!status) status = rp_graph_begin(r->graph, device, NULL);
    if (status) return status;
    w->fn.body(w->fn.ctx, w->in, w->n_in, &out, 1);
    status = rp_graph_end(r->graph);
    return status ? status : failure();
}

static void measure_mode(const struct work *w, enum mode mode, rp_device device) {
    struct runner r = {.w = w, .moves = mode == FUSED_MOVED};
    struct cli_times times = {0};
    rp_scope scope = rp_scope_begin();
    rp_status status = rp_synchronize(device);
    double begin = cli_now(), first = 0;
    const rp_compile_options options = {
        .struct_size = sizeof options, .backend = mode == CUDAGRAPHS ? "cudagraphs" : "fused", .fullgraph = true};
    const rp_graphed_callable callable = {w->fn, w->in, w->n_in, w->params, w->n_params, 1};
    if (!status && mode == RAW_GRAPH) {
        status = capture(&r, device);
    } else if (!status && mode == GRAPHED) {
        status = rp_make_graphed_callables(&callable, 1, NULL, &r.f);
    } else if (!status) {
        r.f = mode == EAGER ? rp_plain(w->fn) : rp_compile(w->fn, &options);
        status = failure();
    }
    for (int i = 0; i < 4 && !status; i++) {
        status = cli_once(run, &r);
        if (!status && i < 2) status = rp_synchronize(device);
        if (i == 1) first = cli_now() - begin; /* the second result, as the peer counts */
    }
    if (!status) status = cli_measure(run, &r, device, SECONDS, &times);
    report(w, names[mode], status, &times, first);
    rp_compiled_release(r.f);
    rp_graph_release(r.graph);
    rp_scope_end(scope, NULL, 0);
}

static void trig_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(rp_cos(in[0]), rp_sin(in[1]));
}

static void rows_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *const *p = ctx; /* weight, bias */
    (void)n_in, (void)n_out;
    out[0] = rp_softmax(rp_layer_norm(rp_gelu(in[0]), RP_DIMS(4096), p[0], p[1], 1e-5), -1);
}

static void softmax_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_softmax(in[0], -1);
}

static void norm_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *const *p = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_layer_norm(in[0], RP_DIMS(rp_size(in[0], -1)), p[0], p[1], 1e-5);
}

static rp_tensor *normal(rp_dtype dtype, const int64_t *size, size_t n) {
    return rp_to_dtype(rp_randn(size, n), dtype);
}

static void measure_forward(struct work *w, rp_device device) {
    bool grad = rp_set_grad_enabled(false);
    for (enum mode m = EAGER; m < MODES; m++) {
        measure_mode(w, m, device);
    }
    rp_set_grad_enabled(grad);
}

/* The inputs of w under another function, fused only: other rows through the same kernels. */
static void measure_rows(const struct work *w, rp_fn fn, const char *name, rp_device device) {
    struct work other = *w;
    bool grad = rp_set_grad_enabled(false);
    other.fn = fn;
    other.name = name;
    measure_mode(&other, FUSED, device);
    rp_set_grad_enabled(grad);
}

static const struct cli_program_options defaults = {0};

static rp_status other_inputs(const struct cli_program *p, rp_tensor **in) {
    rp_tensor *all[MODEL_MAX_INPUTS + 1];
    rp_status status = cli_program_inputs(p, &defaults, all);
    for (int i = 0; i < 2; i++) in[i] = all[i];
    return status;
}

/* Eager, and the whole step as one recording. A step with graphed callables inside replays the forward and backward. */
static void measure_step(rp_device device) {
    enum { EAGER_STEP, STEP_GRAPHED, STEP, STEP_MOVED, STEP_SOME, STEP_MANY, STEP_LINE, STEP_MODES };
    static const char *const modes[STEP_MODES] = {"eager",
                                                  "graphed callables",
                                                  "fused whole step",
                                                  "fused whole step, moved input",
                                                  "fused whole step, 16 inputs",
                                                  "fused whole step, 64 inputs",
                                                  "fused whole step, one line"};
    for (int m = 0; m < STEP_MODES; m++) {
        struct cli_program model;
        struct work w = {.name = "train MLP b64 Adam", .n_in = 2};
        struct runner r = {.w = &w, .moves = m == STEP_MOVED};
        rp_tensor *places[MANY][2];
        struct cli_times times = {0};
        double first = 0;
        rp_scope scope = rp_scope_begin();
        rp_status status = cli_program_make(&model, model_find("mlp"), &defaults);
        for (int i = 0; i < 2 && !status; i++) w.in[i] = model.in[i];
        if (!status) status = other_inputs(&model, w.moved);
        if (m == STEP_SOME || m == STEP_MANY) {
            r.places = &places;
            r.n_places = m == STEP_SOME ? SOME : MANY;
        }
        for (unsigned i = 0; i < r.n_places && !status; i++) {
            status = other_inputs(&model, places[i]);
        }
        double begin = cli_now();
        if (!status && m == STEP_GRAPHED) {
            const rp_graphed_callable callable = {
                cli_program_forward(&model), w.in, 1, model.params, model.n_params, 1};
            const rp_graphed_options graphed = {.struct_size = sizeof graphed, .training = true};
            status = rp_make_graphed_callables(&callable, 1, &graphed, &model.forward);
        }
        rp_compiled *forward = model.forward;
        if (!status) {
            const rp_compile_options options = {.struct_size = sizeof options,
                                                .fullgraph = true,
                                                .layout = m == STEP_LINE ? RP_LAYOUT_LINE : RP_LAYOUT_AUTO};
            r.f = m <= STEP_GRAPHED ? rp_plain(cli_program_step(&model))
                                    : cli_program_compile(&model, cli_program_step(&model), &options);
            status = failure();
        }
        for (int i = 0; i < 4 && !status; i++) {
            status = cli_once(run, &r);
            if (!status && i < 2) status = rp_synchronize(device);
            if (i == 1) first = cli_now() - begin;
        }
        if (!status) status = cli_measure(run, &r, device, SECONDS, &times);
        report(&w, modes[m], status, &times, first);
        rp_scope_end(scope, NULL, 0);
        rp_compiled_release(r.f);
        rp_compiled_release(forward);
        cli_program_release(&model);
    }
}

static rp_status copy(void *ctx) {
    rp_tensor **pair = ctx;
    rp_copy_(pair[0], pair[1]);
    return failure();
}

/* What the memory of the device gives: a copy of 1 GiB, read and written. */
static void measure_copy(rp_device device) {
    struct work w = {.name = "copy 1 GiB", .bytes = 2.0 * (1 << 30)};
    struct cli_times times = {0};
    rp_scope scope = rp_scope_begin();
    rp_tensor *pair[2] = {rp_zeros(RP_DIMS(1 << 28)), rp_zeros(RP_DIMS(1 << 28))};
    rp_status status = failure();
    if (!status) status = cli_measure(copy, pair, device, SECONDS, &times);
    report(&w, "eager", status, &times, 0);
    rp_scope_end(scope, NULL, 0);
    rp_empty_cache(device);
}

static int print_first(void) {
    struct cli_program model;
    rp_tensor *out = NULL;
    rp_status status = cli_program_make(&model, model_find("mlp"), &defaults);
    rp_set_grad_enabled(false);
    rp_compiled *f = status ? NULL : cli_program_compile(&model, cli_program_forward(&model), NULL);
    for (int i = 0; i < 2 && !status; i++) {
        status = rp_call(f, model.in, 1, &out, 1); /* the second call is a graph's */
    }
    float y[640];
    if (!status) status = rp_to_host(out, y, sizeof y);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const char *start = getenv("REPRISE_BENCH_START");
    if (status || !start) {
        fprintf(stderr, "gpu_reprise: %s\n", status ? rp_error_message() : "REPRISE_BENCH_START is not set");
        return 1;
    }
    printf("%.4f\n", (double)t.tv_sec + 1e-9 * (double)t.tv_nsec - strtod(start, NULL));
    rp_compiled_release(f);
    cli_program_release(&model);
    return 0;
}

static void print_kernel(void *ctx, const char *op, const char *site, const char *loop, const char *c,
                         const char *cuda) {
    (void)ctx, (void)op, (void)site, (void)loop, (void)c;
    fputs(cuda, stdout);
}

/* Rows as many that a thread takes what it takes of 8192 of them; all are 0. */
static int print_source(rp_dtype dtype) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[] = {rp_zeros(RP_DIMS(1024, 4096), RP_OPTIONS(rp_zeros_options, .dtype = dtype))}, *out = NULL;
    rp_tensor *params[2] = {rp_ones(RP_DIMS(4096), RP_OPTIONS(rp_ones_options, .dtype = dtype)),
                            rp_zeros(RP_DIMS(4096), RP_OPTIONS(rp_zeros_options, .dtype = dtype))};
    rp_set_grad_enabled(false);
    rp_compiled *f = rp_compile((rp_fn){rows_body, params, sizeof params, "rows"}, NULL);
    rp_status status = rp_call(f, in, 1, &out, 1);
    rp_set_kernel_log(print_kernel, NULL, NULL);
    if (!status) status = rp_call(f, in, 1, &out, 1);
    rp_set_kernel_log(NULL, NULL, NULL);
    if (status) fprintf(stderr, "gpu_reprise: %s\n", rp_error_message());
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    return status != RP_OK;
}

int main(int argc, char **argv) {
    rp_device device = rp_cuda(0);
    if (argc > 1 && !strcmp(argv[1], "--cpu")) { /* the program itself can be tried without a GPU */
        device = rp_cpu();
        argc--, argv++;
    }
    if (!rp_device_available(device) || rp_set_default_device(device)) {
        static char text[16384];
        rp_doctor(text, sizeof text);
        fprintf(stderr, "gpu_reprise: there is no CUDA device\n%s", text);
        return 1;
    }
    if (argc > 1 && !strcmp(argv[1], "first")) return print_first();
    if (argc > 2 && !strcmp(argv[1], "source")) return print_source(strcmp(argv[2], "bf16") ? RP_F32 : RP_BF16);
    rp_manual_seed(1);
    rp_scope scope = rp_scope_begin();

    struct work trig = {.name = "trig n=1e4", .fn = {trig_body, NULL, 0, "trig"}, .n_in = 2};
    for (int i = 0; i < 2; i++) {
        trig.in[i] = normal(RP_F32, RP_DIMS(10000));
        trig.moved[i] = normal(RP_F32, RP_DIMS(10000));
    }
    measure_forward(&trig, device);

    struct cli_program model;
    if (!cli_program_make(&model, model_find("mlp"), &defaults)) {
        struct work mlp = {.name = "MLP 10-64-10 (10,)", .fn = cli_program_forward(&model), .n_in = 1};
        mlp.params = model.params;
        mlp.n_params = model.n_params;
        mlp.in[0] = normal(RP_F32, RP_DIMS(10));
        mlp.moved[0] = normal(RP_F32, RP_DIMS(10));
        measure_forward(&mlp, device);
        mlp.name = "MLP 10-64-10 b64";
        mlp.in[0] = normal(RP_F32, RP_DIMS(64, 10));
        mlp.moved[0] = normal(RP_F32, RP_DIMS(64, 10));
        measure_forward(&mlp, device);
        cli_program_release(&model);
    }
    measure_step(device);
    measure_copy(device);
    static const struct {
        const char *name;
        rp_dtype dtype;
    } types[] = {{"gelu-layernorm-softmax 8192x4096 f32", RP_F32}, {"gelu-layernorm-softmax 8192x4096 bf16", RP_BF16}};
    for (int i = 0; i < 2; i++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *params[2] = {rp_ones(RP_DIMS(4096), RP_OPTIONS(rp_ones_options, .dtype = types[i].dtype)),
                                rp_zeros(RP_DIMS(4096), RP_OPTIONS(rp_zeros_options, .dtype = types[i].dtype))};
        struct work rows = {.name = types[i].name, .fn = {rows_body, params, sizeof params, "rows"}, .n_in = 1};
        rows.in[0] = normal(types[i].dtype, RP_DIMS(8192, 4096));
        rows.moved[0] = normal(types[i].dtype, RP_DIMS(8192, 4096));
        rows.bytes = 2.0 * 8192 * 4096 * (double)rp_dtype_size(types[i].dtype);
        measure_forward(&rows, device);
        measure_rows(&rows, (rp_fn){softmax_body, NULL, 0, "softmax"},
                     i ? "softmax 8192x4096 bf16" : "softmax 8192x4096 f32", device);
        measure_rows(&rows, (rp_fn){norm_body, params, sizeof params, "norm"},
                     i ? "layernorm 8192x4096 bf16" : "layernorm 8192x4096 f32", device);
        rp_scope_end(inner, NULL, 0);
        rp_empty_cache(device);
    }
    rp_scope_end(scope, NULL, 0);
    return rp_failed();
}
