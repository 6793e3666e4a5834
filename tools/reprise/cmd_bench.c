/* `reprise bench`: times of ops, models and replays on the CPU of this machine, and whether recording leaks. With --peer, a
 * program that measures the same rows with another library runs beside: it reads a row's name a line and answers with its
 * nanoseconds. The two take turns, ROUNDS a row, so that what else the machine does falls on both; medians of the rounds and
 * their ratio are printed. Beside each median stands what a tenth of the calls took at the most, in the quietest turn: where
 * processors are shared with others, as those of most virtual machines are, a call takes up to twice as long whenever the
 * other half of its core is in use, and the median tells how often that was. Rows that read and write much memory also tell
 * bytes a second, to be held against those of copy_. `make bench` does that with bench/peer_libtorch.cpp. */
#include "cli.h"
#include "graph_file.h"
#include "measure.h"
#include "model_options.h"
#include "program.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SAMPLES = 400, ROUNDS = 5, LEAK_ROUNDS = 1000 };

struct bench_options {
    struct cli_options common;
    const char *peer;
    double seconds; /* a row */
    long calls;     /* a row, instead of seconds; 0: not given */
    char **only;    /* parts of names, NULL after the last; none: every row */
    struct cli_graph graph;
    struct cli_model_options model;
    bool train;     /* of a model: its training step */
    char *backends; /* of a graph or a model, with commas between them */
};

/* What a row repeats. `in` and `f` live as long as the row. */
struct work {
    rp_compiled *f;
    rp_tensor *in[MODEL_MAX_INPUTS + 1];
    size_t n_in;
    rp_tensor *(*op)(struct work *w); /* without f: an eager op */
};

struct times {
    double ns, low_ns; /* median, and what a tenth stays below; 0: not measured */
};

struct row {
    const char *name;
    struct times ours, peer;
    double bytes;     /* read and written by a call at the least; 0: too few to tell */
    char reason[384]; /* why not */
};

/* So many calls; the time of one. What a call returns is given back before the next, as the peer's temporaries are. */
static double time_calls(struct work *w, size_t n) {
    double begin = cli_now();
    for (size_t i = 0; i < n; i++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *out = NULL;
        if (w->f) {
            rp_call(w->f, w->in, w->n_in, &out, 1);
        } else {
            w->op(w);
        }
        rp_scope_end(scope, NULL, 0);
    }
    return (cli_now() - begin) / (double)n;
}

/* Calls are timed in groups of at least 20 us. */
static rp_status measure(struct work *w, double seconds, struct times *times) {
    static double samples[SAMPLES];
    size_t n = 0, group = 1;
    double end = 0;
    while (n < SAMPLES && (!end || cli_now() < end || n < 3)) {
        double took = time_calls(w, group);
        if (rp_failed()) return rp_error_status();
        if (!end && took * (double)group < 20e-6) {
            group *= 2;
            continue;
        }
        if (!end) end = cli_now() + seconds;
        samples[n++] = took;
    }
    times->ns = 1e9 * cli_median(samples, n);
    times->low_ns = 1e9 * samples[n / 10];
    return RP_OK;
}

/* ---------------------------------------------------------------- the peer */

struct peer {
    FILE *to, *from; /* both NULL: none runs */
    pid_t pid;
};

static int peer_start(struct peer *p, const char *program) {
    char threads[16];
    int ends[2];
    snprintf(threads, sizeof threads, "%d", rp_num_threads());
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) {
        perror("reprise bench: peer");
        return CLI_FAILED;
    }
    signal(SIGPIPE, SIG_IGN); /* a peer that ends early is an answer that does not come */
    p->pid = fork();
    if (!p->pid) {
        dup2(ends[1], STDIN_FILENO);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl(program, program, threads, (char *)NULL);
        perror(program);
        _exit(127);
    }
    close(ends[1]);
    int again = dup(ends[0]);
    p->to = fdopen(ends[0], "w");
    p->from = again < 0 ? NULL : fdopen(again, "r");
    if (p->pid < 0 || !p->to || !p->from) {
        perror("reprise bench: peer");
        return CLI_FAILED;
    }
    return CLI_OK;
}

static int peer_end(struct peer *p) {
    int status = 0;
    if (p->to) fclose(p->to);
    if (p->from) {
        shutdown(fileno(p->from), SHUT_RDWR);
        fclose(p->from);
    }
    if (p->pid > 0 && (waitpid(p->pid, &status, 0) < 0 || status)) {
        fprintf(stderr, "reprise bench: the peer failed\n");
        return CLI_FAILED;
    }
    return CLI_OK;
}

/* The peer has no replay: its eager calls stand beside ours. Zeros: it does not know the row. */
static struct times peer_measure(struct peer *p, const char *name, double seconds) {
    const char *replay = strstr(name, ", replay");
    struct times times = {0, 0};
    char line[64], *end;
    if (!p->to) return times;
    fprintf(p->to, "%g\t%.*s\n", seconds, (int)(replay ? replay - name : (ptrdiff_t)strlen(name)), name);
    if (fflush(p->to) || !fgets(line, sizeof line, p->from)) return times;
    times.ns = strtod(line, &end);
    times.low_ns = strtod(end, NULL);
    return times;
}

/* ---------------------------------------------------------------- rows: names are those of the peer */

static rp_tensor *add_op(struct work *w) { return rp_add(w->in[0], w->in[1]); }
static rp_tensor *sin_op(struct work *w) { return rp_sin(rp_mul_scalar(w->in[0], rp_i64(2))); }
static rp_tensor *softmax_op(struct work *w) { return rp_softmax(w->in[0], -1); }
static rp_tensor *sum_op(struct work *w) { return rp_sum(w->in[0]); }
static rp_tensor *norm_op(struct work *w) { return rp_layer_norm(w->in[0], RP_DIMS(1024), w->in[1], w->in[2], 1e-5); }
static rp_tensor *gelu_op(struct work *w) { return rp_gelu(w->in[0]); }
static rp_tensor *copy_op(struct work *w) { return rp_copy_(w->in[1], w->in[0]); }
static rp_tensor *chain(rp_tensor *x) {
    return rp_softmax(rp_layer_norm(rp_gelu(x), RP_DIMS(1024), NULL, NULL, 1e-5), -1);
}
static rp_tensor *chain_op(struct work *w) { return chain(w->in[0]); }

static void chain_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = chain(in[0]);
}

static void add_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(in[0], in[1]);
}

/* No kernel: what is left of a call are its guards, its dispatch to the recording and its results. */
static void same_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = in[0];
}

static void trig_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sin(rp_mul_scalar(in[0], rp_i64(2)));
}

#define BIG (4.0 * 4096 * 1024) /* bytes of such a matrix of f32 */
enum kind { OP, REPLAY, MODEL_EAGER, MODEL_REPLAY, STEP_EAGER, STEP_REPLAY };
static const struct row_kind {
    const char *name;
    enum kind kind;
    rp_tensor *(*op)(struct work *w);
    rp_body *body;
    int64_t size[2], n_dims, n_in; /* of random inputs; the MLP: batch, 0 for one unbatched row */
    double bytes;                  /* as in struct row */
    rp_dtype dtype;                /* of inputs */
} kinds[] = {
    {"no kernel, guards of two inputs, replay", REPLAY, NULL, same_body, {16}, 1, 2, 0, RP_F32},
    {"add, 16 floats", OP, add_op, NULL, {16}, 1, 2, 0, RP_F32},
    {"add, 16 floats, replay", REPLAY, NULL, add_body, {16}, 1, 2, 0, RP_F32},
    {"sin(2x), 10000 floats", OP, sin_op, NULL, {10000}, 1, 1, 0, RP_F32},
    {"sin(2x), 10000 floats, replay", REPLAY, NULL, trig_body, {10000}, 1, 1, 0, RP_F32},
    {"MLP 10-64-10, (10)", MODEL_EAGER, NULL, NULL, {0}, 0, 0, 0, RP_F32},
    {"MLP 10-64-10, (10), replay", MODEL_REPLAY, NULL, NULL, {0}, 0, 0, 0, RP_F32},
    {"MLP 10-64-10, (64, 10)", MODEL_EAGER, NULL, NULL, {64}, 0, 0, 0, RP_F32},
    {"MLP 10-64-10, (64, 10), replay", MODEL_REPLAY, NULL, NULL, {64}, 0, 0, 0, RP_F32},
    {"MLP 10-64-10, (64, 10), Adam step", STEP_EAGER, NULL, NULL, {64}, 0, 0, 0, RP_F32},
    {"MLP 10-64-10, (64, 10), Adam step, replay", STEP_REPLAY, NULL, NULL, {64}, 0, 0, 0, RP_F32},
    {"copy_, 4096 x 1024", OP, copy_op, NULL, {4096, 1024}, 2, 2, 2.0 * BIG, RP_F32},
    {"softmax, 4096 x 1024", OP, softmax_op, NULL, {4096, 1024}, 2, 1, 2.0 * BIG, RP_F32},
    {"layer_norm, 4096 x 1024", OP, norm_op, NULL, {4096, 1024}, 2, 1, 2.0 * BIG, RP_F32},
    {"sum, 4096 x 1024", OP, sum_op, NULL, {4096, 1024}, 2, 1, BIG, RP_F32},
    {"gelu, 4096 x 1024", OP, gelu_op, NULL, {4096, 1024}, 2, 1, 2.0 * BIG, RP_F32},
    {"gelu-layer_norm-softmax, f32", OP, chain_op, NULL, {4096, 1024}, 2, 1, 2.0 * BIG, RP_F32},
    {"gelu-layer_norm-softmax, f32, replay", REPLAY, NULL, chain_body, {4096, 1024}, 2, 1, 2.0 * BIG, RP_F32},
    {"gelu-layer_norm-softmax, bf16", OP, chain_op, NULL, {4096, 1024}, 2, 1, BIG, RP_BF16},
    {"gelu-layer_norm-softmax, bf16, replay", REPLAY, NULL, chain_body, {4096, 1024}, 2, 1, BIG, RP_BF16},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static const rp_compile_options replayed = {
    .struct_size = sizeof replayed, .backend = "fused", .fullgraph = true, .wait = true};
static rp_compiled *recorded(rp_fn fn) { return rp_compile(fn, &replayed); }

/* A replay has to have been recorded, compared and built. */
static rp_status warm_up(struct work *w) {
    for (int i = 0; w->f && i < 3; i++) {
        rp_tensor *out = NULL;
        rp_status status = rp_call(w->f, w->in, w->n_in, &out, 1);
        if (status) return status;
    }
    return rp_failed() ? rp_error_status() : RP_OK;
}

static struct times of_rounds(const struct times *rounds) {
    double ns[ROUNDS];
    struct times times = {0, rounds[0].low_ns};
    for (int i = 0; i < ROUNDS; i++) {
        ns[i] = rounds[i].ns;
        if (rounds[i].low_ns < times.low_ns) times.low_ns = rounds[i].low_ns;
    }
    times.ns = cli_median(ns, ROUNDS);
    return times;
}

static rp_status measure_rounds(struct work *w, struct peer *peer, const struct bench_options *o, struct row *row) {
    struct times ours[ROUNDS], theirs[ROUNDS];
    if (o->calls) { /* for programs that count instructions: nothing but these calls depends on their number */
        row->ours.ns = row->ours.low_ns = 1e9 * time_calls(w, (size_t)o->calls);
        return rp_failed() ? rp_error_status() : RP_OK;
    }
    for (int i = 0; i < ROUNDS; i++) {
        theirs[i] = peer_measure(peer, row->name, o->seconds / ROUNDS);
        rp_status status = measure(w, o->seconds / ROUNDS, ours + i);
        if (status) return status;
    }
    row->ours = of_rounds(ours);
    row->peer = of_rounds(theirs);
    return RP_OK;
}

static rp_status measure_row(const struct row_kind *k, struct peer *peer, const struct bench_options *o,
                             struct row *row) {
    struct work w = {.op = k->op, .n_in = (size_t)k->n_in};
    struct cli_program model = {.n_params = 0};
    const struct cli_program_options defaults = {0};
    rp_scope scope = rp_scope_begin();
    bool step = k->kind == STEP_EAGER || k->kind == STEP_REPLAY, grad = rp_set_grad_enabled(step);
    rp_status status = rp_manual_seed(1);
    for (int64_t i = 0; i < k->n_in; i++) {
        w.in[i] = rp_randn(k->size, (size_t)k->n_dims, RP_OPTIONS(rp_randn_options, .dtype = k->dtype));
    }
    if (k->op == norm_op) {
        w.in[1] = rp_ones(RP_DIMS(1024));
        w.in[2] = rp_zeros(RP_DIMS(1024));
    }
    if (k->kind == REPLAY) w.f = recorded((rp_fn){k->body, NULL, 0, k->name});
    if (k->kind >= MODEL_EAGER) {
        status = cli_program_make(&model, model_find("mlp"), &defaults);
        w.in[0] = model.in[0];
        w.in[1] = model.in[1];
        if (!k->size[0]) w.in[0] = rp_select(w.in[0], 0, 0); /* (10) */
        w.n_in = step ? 2 : 1;
        rp_fn fn = step ? cli_program_step(&model) : cli_program_forward(&model);
        w.f =
            k->kind == MODEL_EAGER || k->kind == STEP_EAGER ? rp_plain(fn) : cli_program_compile(&model, fn, &replayed);
    }
    if (!status) status = warm_up(&w);
    if (!status) status = measure_rounds(&w, peer, o, row);
    rp_set_grad_enabled(grad);
    rp_compiled_release(w.f);
    rp_scope_end(scope, NULL, 0);
    cli_program_release(&model);
    return status;
}

/* ---------------------------------------------------------------- leaks */

struct leak {
    uint64_t bytes, tensors; /* more than before, after LEAK_ROUNDS of each */
    char reason[384];
};

static rp_status capture_once(rp_tensor *x) {
    rp_graph *g = rp_graph_new();
    rp_status status = rp_graph_begin(g, rp_device_of(x), NULL);
    if (!status) {
        rp_sin(rp_mul_scalar(x, rp_i64(2)));
        status = rp_graph_end(g);
    }
    if (!status) status = rp_graph_replay(g);
    rp_graph_release(g);
    return status;
}

static rp_status compile_once(rp_tensor *x) {
    rp_compiled *f = recorded((rp_fn){trig_body, NULL, 0, "trig"});
    rp_tensor *out = NULL;
    rp_status status = rp_failed() ? rp_error_status() : RP_OK;
    for (int i = 0; !status && i < 3; i++) {
        status = rp_call(f, &x, 1, &out, 1);
    }
    rp_compiled_release(f);
    return status;
}

/* The first rounds fill caches that stay; the bytes of the rounds after them are what leaks. */
static rp_status find_leak(rp_status (*once)(rp_tensor *x), struct leak *leak) {
    rp_memory_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    rp_scope outer = rp_scope_begin();
    rp_tensor *x = rp_ones(RP_DIMS(1000));
    rp_status status = rp_failed() ? rp_error_status() : RP_OK;
    for (int i = 0; !status && i < LEAK_ROUNDS + 10; i++) {
        if (i == 10) status = rp_memory_stats_get(rp_cpu(), &before);
        rp_scope scope = rp_scope_begin();
        if (!status) status = once(x);
        rp_scope_end(scope, NULL, 0);
    }
    if (!status) status = rp_memory_stats_get(rp_cpu(), &after);
    leak->bytes = after.allocated > before.allocated ? after.allocated - before.allocated : 0;
    if (after.reserved > before.reserved) leak->bytes += after.reserved - before.reserved;
    leak->tensors = after.live_tensors > before.live_tensors ? after.live_tensors - before.live_tensors : 0;
    rp_scope_end(outer, NULL, 0);
    return status;
}

static void take_reason(char *reason, size_t bytes, rp_status status) {
    snprintf(reason, bytes, "%s: %s", rp_status_name(status), rp_error_message());
    reason[strcspn(reason, "\n")] = 0;
    rp_error_take();
}

/* ---------------------------------------------------------------- output */

static void print_time(double ns) {
    if (!ns) {
        printf("%12s", "-");
    } else if (ns < 1e4) {
        printf("%9.0f ns", ns);
    } else {
        printf("%9.1f us", ns / 1e3);
    }
}

static void print_rows(const struct row *rows, bool peer) {
    printf("%-44s%12s%12s%s%9s\n", "", "reprise", "a tenth", peer ? "        peer     a tenth   peer / reprise" : "",
           "GB/s");
    for (int i = 0; i < N_KINDS; i++) {
        const struct row *r = rows + i;
        if (!r->name) continue;
        printf("%-44s", r->name);
        if (r->reason[0]) {
            printf("  %s\n", r->reason);
            continue;
        }
        print_time(r->ours.ns);
        print_time(r->ours.low_ns);
        if (peer) {
            print_time(r->peer.ns);
            print_time(r->peer.low_ns);
        }
        if (r->peer.ns)
            printf("   %14.2f", r->peer.ns / r->ours.ns);
        else if (peer)
            printf("%17s", "");
        if (r->bytes) printf(" %8.1f", r->bytes / r->ours.ns);
        putchar('\n');
    }
}

static json_t *row_to_json(const struct row *r) {
    json_t *one = json_pack("{s:s}", "name", r->name);
    if (r->reason[0]) json_object_set_new(one, "reason", json_string(r->reason));
    if (r->ours.ns) {
        json_object_set_new(one, "ns", json_real(r->ours.ns));
        json_object_set_new(one, "low_ns", json_real(r->ours.low_ns));
    }
    if (r->peer.ns) json_object_set_new(one, "peer_ns", json_real(r->peer.ns));
    if (r->peer.low_ns) json_object_set_new(one, "peer_low_ns", json_real(r->peer.low_ns));
    if (r->ours.ns && r->peer.ns) json_object_set_new(one, "ratio", json_real(r->peer.ns / r->ours.ns));
    if (r->ours.ns && r->bytes) json_object_set_new(one, "gb_per_s", json_real(r->bytes / r->ours.ns));
    return one;
}

/* ---------------------------------------------------------------- a graph in text form */

struct graph_call {
    rp_compiled *f;
    rp_tensor *const *in;
    size_t n_in, n_out;
};

static rp_status call_graph(void *ctx) {
    struct graph_call *c = ctx;
    rp_tensor *out[CLI_MAX_GRAPH_INPUTS];
    return rp_call(c->f, c->in, c->n_in, out, c->n_out);
}

/* A row a backend, on inputs that stay where they are. */
static int bench_graph(struct bench_options *o) {
    char names[512];
    json_t *list = o->common.json ? json_array() : NULL;
    int code = cli_graph_load(&o->graph, "bench", o->only[0]);
    if (!code && !list) printf("%-24s%12s%12s%12s%12s\n", "", "host us", "latency us", "period us", "first ms");
    snprintf(names, sizeof names, "%s", o->backends ? o->backends : "eager,aot_eager,fused");
    rp_set_grad_enabled(false);
    for (char *save, *name = strtok_r(names, ",", &save); name && !code; name = strtok_r(NULL, ",", &save)) {
        rp_tensor *in[CLI_MAX_GRAPH_INPUTS] = {NULL};
        rp_ir *ir = NULL;
        struct cli_times t;
        rp_scope scope = rp_scope_begin();
        rp_status status = cli_graph_inputs(&o->graph, "bench", in);
        rp_compiled *f = status ? NULL : cli_graph_compile(&o->graph, name, &ir);
        struct graph_call c = {f, in, o->graph.n_in, o->graph.n_out};
        const rp_device device = o->graph.n_in && !status ? rp_device_of(in[0]) : rp_default_device();
        const double begin = cli_now();
        if (!status) status = rp_failed() ? rp_error_status() : cli_once(call_graph, &c);
        if (!status) status = rp_synchronize(device);
        const double first = cli_now() - begin;
        if (!status) status = cli_once(call_graph, &c); /* is compared */
        if (!status) status = cli_measure(call_graph, &c, device, o->seconds, &t);
        rp_scope_end(scope, NULL, 0);
        rp_compiled_release(f);
        rp_ir_release(ir);
        if (status)
            code = cli_graph_failed(&o->graph, "bench", status);
        else if (list)
            json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:f}", "backend", name, "host_us", t.host_us,
                                                  "latency_us", t.latency_us, "period_us", t.period_us, "first_ms",
                                                  1e3 * first));
        else
            printf("%-24s%12.2f%12.2f%12.2f%12.3f\n", name, t.host_us, t.latency_us, t.period_us, 1e3 * first);
    }
    cli_graph_free(&o->graph);
    if (!list || code) {
        json_decref(list);
        return code;
    }
    return cli_print_json(list);
}

/* ---------------------------------------------------------------- a model */

static rp_status call_once(void *ctx) {
    struct work *w = ctx;
    rp_tensor *out = NULL;
    return rp_call(w->f, w->in, w->n_in, &out, 1);
}

/* One backend: the forward function, or the whole step, and the peak of memory beyond weights and arguments. */
static rp_status measure_model(const struct bench_options *o, const struct model_kind *kind, const char *backend,
                               struct cli_times *times, double *first, int64_t *memory) {
    struct cli_program p;
    const rp_compile_options options = {.struct_size = sizeof options, .backend = backend, .wait = true};
    const rp_device device = rp_default_device();
    rp_status status = cli_program_make(&p, kind, &o->model.program);
    if (status) return status;
    if (!o->train && p.model.module) status = rp_module_set_training(p.model.module, false);
    rp_memory_stats stats = {.struct_size = sizeof stats};
    if (!status) status = rp_synchronize(device);
    if (!status) status = rp_memory_stats_get(device, &stats);
    const uint64_t before = stats.allocated;
    rp_memory_stats_reset_peak(device);
    const double begin = cli_now();
    struct work w = {.n_in = cli_program_n_in(&p, o->train)};
    memcpy(w.in, p.in, w.n_in * sizeof *w.in);
    if (!status) w.f = cli_program_compile(&p, o->train ? cli_program_step(&p) : cli_program_forward(&p), &options);
    if (!status) status = rp_failed() ? rp_error_status() : cli_once(call_once, &w);
    if (!status) status = rp_synchronize(device);
    *first = cli_now() - begin;
    if (!status) status = cli_once(call_once, &w); /* is compared */
    if (!status) status = cli_measure(call_once, &w, device, o->seconds, times);
    if (!status) status = rp_memory_stats_get(device, &stats);
    *memory = (int64_t)(stats.allocated_peak - before);
    rp_compiled_release(w.f);
    cli_program_release(&p);
    return status;
}

static int bench_model(struct bench_options *o, const struct model_kind *kind) {
    char names[512];
    int code = cli_model_device(&o->model, "bench");
    json_t *list = o->common.json ? json_array() : NULL;
    if (!code && !list)
        printf("%-24s%12s%12s%12s%12s%8s\n", o->train ? "training step" : "forward", "host us", "latency us",
               "period us", "first ms", "MiB");
    rp_set_grad_enabled(o->train);
    snprintf(names, sizeof names, "%s", o->backends ? o->backends : "eager,fused");
    for (char *save, *name = strtok_r(names, ",", &save); name && !code; name = strtok_r(NULL, ",", &save)) {
        struct cli_times t;
        double first;
        int64_t memory;
        rp_scope scope = rp_scope_begin();
        rp_status status = measure_model(o, kind, name, &t, &first, &memory);
        rp_scope_end(scope, NULL, 0);
        if (status)
            code = cli_model_failed("bench", kind->name, status);
        else if (list)
            json_array_append_new(list, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:I}", "backend", name, "what",
                                                  o->train ? "step" : "forward", "host_us", t.host_us, "latency_us",
                                                  t.latency_us, "period_us", t.period_us, "first_ms", 1e3 * first,
                                                  "memory_bytes", (json_int_t)memory));
        else
            printf("%-24s%12.2f%12.2f%12.2f%12.3f%8.1f\n", name, t.host_us, t.latency_us, t.period_us, 1e3 * first,
                   (double)memory / (1 << 20));
        fflush(stdout);
    }
    if (!list || code) {
        json_decref(list);
        return code;
    }
    return cli_print_json(list);
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    struct bench_options *o = state->input;
    char *end, why[256];
    switch (key) {
    case 'p': o->peer = arg; return 0;
    case 'c':
        o->calls = strtol(arg, &end, 10);
        if (*end || o->calls < 1) argp_error(state, "--calls: '%s' is no number of calls", cli_shown(arg));
        return 0;
    case 's':
        o->seconds = strtod(arg, &end);
        if (*end || !(o->seconds > 0) || !isfinite(o->seconds))
            argp_error(state, "--seconds: '%s' is no time", cli_shown(arg));
        return 0;
    case 'b': o->backends = arg; return 0;
    case 'i':
        if (!cli_input_add(&o->graph, arg, why, sizeof why)) argp_error(state, "--input %s: %s", cli_shown(arg), why);
        return 0;
    case 't': o->train = true; return 0;
    case ARGP_KEY_ARGS: o->only = state->argv + state->next; return 0;
    default: return cli_model_option(&o->model, key, arg, state) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static bool is_wanted(const struct bench_options *o, const char *name) {
    for (char **part = o->only; part && *part; part++) {
        if (strstr(name, *part)) return true;
    }
    return !o->only;
}

static int run(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"peer", 'p', "PROGRAM", 0,
         "Measure the same with another library: PROGRAM THREADS answers SECONDS<TAB>NAME lines with nanoseconds: the "
         "median, and what a tenth stays below",
         0},
        {"seconds", 's', "N", 0, "Time for each row (0.5)", 0},
        {"calls", 'c', "N", 0, "Just N calls of each row, for tools that count instructions; no peer, and no counts",
         0},
        {"backend", 'b', "NAME,...", 0,
         "The backends that compute a model (eager, fused) or a graph (eager, aot_eager, fused)", 0},
        {"input", 'i', "INPUT", 0, "Of the next argument of a graph, as for `reprise run`", 0},
        {"train", 't', NULL, 0, "The whole training step of a model instead of its forward function", 0},
        CLI_MODEL_OPTIONS,
        {0},
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "[MODEL | FILE | PART-OF-NAME...]",
        .doc =
            "Measures ops, models and replays on the CPU, medians of many calls and what the fastest tenth took at the "
            "most, and counts what a thousand captures and a thousand compilations leave behind. With parts of names: only "
            "the rows that contain one, and no counts. With a MODEL (`reprise run -l` names them): its forward function "
            "or training step by each of the backends, and the peak of memory beyond weights and arguments. With a FILE (a name with a dot or slash, or - for standard input): a "
            "graph in text form, by each of the backends.",
    };
    struct bench_options o = {.seconds = 0.5};
    if (cli_parse(&argp, argc, argv, &o.common)) return CLI_USAGE;
    const struct model_kind *kind = o.only && !o.only[1] ? model_find(o.only[0]) : NULL;
    if (kind || (o.only && !o.only[1] && cli_is_graph(o.only[0]))) {
        char names[512];
        snprintf(names, sizeof names, "%s", o.backends ? o.backends : "");
        for (char *save, *name = strtok_r(names, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
            if (!cli_is_backend("bench", name)) return CLI_USAGE;
        }
        if (kind && (o.graph.n_inputs || o.peer || o.calls)) {
            fputs("reprise bench: --input, --peer and --calls are not for models\n", stderr);
            return CLI_USAGE;
        }
        if (kind && o.train && !cli_program_trains(kind)) {
            fprintf(stderr, "reprise bench: '%s' is not trained\n", kind->name);
            return CLI_USAGE;
        }
        if (!kind && (o.model.given || o.train)) {
            fputs(
                "reprise bench: --weights, --prefix, --dtype, --batch, --length, --device and --train are for models\n",
                stderr);
            return CLI_USAGE;
        }
        if (kind) return cli_model_fits(&o.model, "bench", kind) ? bench_model(&o, kind) : CLI_USAGE;
        return bench_graph(&o);
    }
    if (o.backends || o.graph.n_inputs || o.model.given || o.train) {
        fputs(
            "reprise bench: --backend is for a model or a graph in a file, --input for a graph, the others for a model\n",
            stderr);
        return CLI_USAGE;
    }
    static struct row rows[N_KINDS];
    int code = CLI_OK, n_wanted = 0;
    for (int i = 0; i < N_KINDS; i++) {
        rows[i].bytes = kinds[i].bytes;
        if (!is_wanted(&o, kinds[i].name)) continue;
        rows[i].name = kinds[i].name;
        n_wanted++;
    }
    if (!n_wanted) {
        fprintf(stderr, "reprise bench: no row is named so; without names all are measured\n");
        return CLI_USAGE;
    }
    struct peer peer = {.to = NULL};
    if (o.peer && !o.calls) code = peer_start(&peer, o.peer);
    for (int i = 0; i < N_KINDS; i++) {
        rp_status status = rows[i].name ? measure_row(kinds + i, &peer, &o, rows + i) : RP_OK;
        if (!status) continue;
        take_reason(rows[i].reason, sizeof rows[i].reason, status);
        if (status != RP_ERROR_UNAVAILABLE) code = CLI_FAILED;
    }
    if (peer_end(&peer)) code = CLI_FAILED;
    struct leak leaks[2] = {{0}};
    static const char *const leak_names[2] = {"1000 captures", "1000 compilations"};
    rp_status (*const once[2])(rp_tensor *) = {capture_once, compile_once};
    const int n_leaks = o.only || o.calls ? 0 : 2;
    for (int i = 0; i < n_leaks; i++) {
        rp_status status = find_leak(once[i], leaks + i);
        if (status) take_reason(leaks[i].reason, sizeof leaks[i].reason, status);
        if ((status && status != RP_ERROR_UNAVAILABLE) || leaks[i].bytes || leaks[i].tensors) code = CLI_FAILED;
    }
    if (!o.common.json) {
        print_rows(rows, o.peer && !o.calls);
        for (int i = 0; i < n_leaks; i++) {
            printf("%-44s", leak_names[i]);
            if (leaks[i].reason[0]) {
                printf("  %s\n", leaks[i].reason);
            } else {
                printf("  %llu bytes and %llu tensors left\n", (unsigned long long)leaks[i].bytes,
                       (unsigned long long)leaks[i].tensors);
            }
        }
        return code;
    }
    json_t *list = json_array();
    for (int i = 0; i < N_KINDS; i++) {
        if (rows[i].name) json_array_append_new(list, row_to_json(rows + i));
    }
    for (int i = 0; i < n_leaks; i++) {
        json_t *one = json_pack("{s:s, s:I, s:I}", "name", leak_names[i], "bytes_left", (json_int_t)leaks[i].bytes,
                                "tensors_left", (json_int_t)leaks[i].tensors);
        if (leaks[i].reason[0]) json_object_set_new(one, "reason", json_string(leaks[i].reason));
        json_array_append_new(list, one);
    }
    int printed = cli_print_json(list);
    return code ? code : printed;
}

const struct cli_command cli_cmd_bench = {"bench", "measure ops, models and replays on this machine", run};
