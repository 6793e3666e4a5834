/* `reprise demo`: models, eagerly and recorded, side by side, each a table of modes; then a character-level language
 * model is trained on a real text, stopped, resumed and sampled from. A mode that this machine or build lacks says why
 * in its row; the command fails only if something that is there gives an error. */
#include "cli.h"
#include "measure.h"
#include "program.h"
#include "train_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 1000000000 };
enum mode { EAGER, GRAPHED, CUDAGRAPHS, FUSED, MODES };
static const char *const mode_names[MODES] = {"eager", "graphed callables", "cudagraphs", "fused"};

enum { EPOCHS = 10 };
/* What a table of modes is worth: the seconds of a row, epochs that are compared, and the batch (0: the model's
   own). */
struct effort {
    double seconds;
    int epochs;
    int64_t batch;
    bool ends; /* the first and the last mode alone */
};
static const struct effort SMALL = {0.4, EPOCHS, 0, false}, LARGE = {1, 1, 1, true};
static bool is_measured(const struct effort *e, enum mode m) { return !e->ends || m == EAGER || m == FUSED; }

struct demo_options {
    struct cli_options common;
    const char *text, *device;
    double seconds; /* for training the language model, at most */
    size_t steps;   /* likewise */
};

struct row {
    struct cli_times times;
    double first_ms;     /* compile or capture and the first call */
    int64_t memory;      /* peak bytes in tensors beyond model and input, from recording to the last call */
    double difference;   /* largest, to eager: of results, or of losses and parameters after EPOCHS epochs */
    double loss[EPOCHS]; /* training only */
    rp_status status;
    char reason[512]; /* "" when the row was measured */
};

/* What one mode of one model computed, for the comparison with eager. */
struct values {
    float *x;
    size_t n;
};

static rp_status add_values(struct values *v, rp_tensor *t) {
    size_t n = (size_t)rp_numel(t);
    float *more = realloc(v->x, (v->n + n + 1) * sizeof *more);
    if (!more) return RP_ERROR_OUT_OF_MEMORY;
    v->x = more;
    rp_status status = rp_to_host(t, v->x + v->n, n * sizeof(float));
    if (!status) v->n += n;
    return status;
}

static double difference(const struct values *a, const struct values *b) {
    if (a->n != b->n) return INFINITY;
    double largest = 0;
    for (size_t i = 0; i < a->n; i++) {
        double d = fabs((double)a->x[i] - (double)b->x[i]);
        if (!(d <= largest)) largest = d; /* a NaN is kept */
    }
    return largest;
}

static rp_memory_stats memory_of(rp_device device) {
    rp_memory_stats stats = {.struct_size = sizeof stats};
    if (rp_memory_stats_get(device, &stats)) stats = (rp_memory_stats){0};
    return stats;
}

/* ---------------------------------------------------------------- one mode of one model */

/* What is called again and again: plain functions and recorded ones alike. */
struct runner {
    rp_compiled *call;
    rp_tensor *const *in;
    size_t n_in;
    rp_tensor *out; /* of the last call; of the scope around the call */
};

static rp_status run_once(void *ctx) {
    struct runner *r = ctx;
    return rp_call(r->call, r->in, r->n_in, &r->out, 1);
}

/* The function itself, or what its recording is called through. */
static rp_status record(enum mode mode, struct cli_program *p, rp_fn fn, bool training, rp_compiled **out) {
    if (mode == GRAPHED) {
        const size_t n_params = p->model.module ? p->n_params : 0;
        const rp_graphed_callable one = {fn, p->in, cli_program_n_in(p, false), p->params, n_params, 1};
        const rp_graphed_options options = {.struct_size = sizeof options, .training = training};
        return rp_make_graphed_callables(&one, 1, &options, out);
    }
    const rp_compile_options options = {.struct_size = sizeof options, .backend = mode_names[mode], .fullgraph = true};
    *out = mode == EAGER ? rp_plain(fn) : cli_program_compile(p, fn, &options);
    return rp_failed() ? rp_error_status() : RP_OK;
}

/* Inference: the forward function is recorded. Training: eager calls it from a step, graphed callables and cudagraphs
   record it and leave the rest of the step as it is, fused records the whole step. */
static rp_status measure_mode(const struct model_kind *kind, enum mode mode, bool training, const struct effort *effort,
                              rp_device device, struct row *row, struct values *values) {
    struct cli_program program;
    const struct cli_program_options defaults = {.batch = effort->batch};
    rp_compiled *forward = NULL, *call = NULL;
    values->n = 0;
    rp_status status = cli_program_make(&program, kind, &defaults);
    if (status) return status;
    if (!training && program.model.module) status = rp_module_set_training(program.model.module, false);
    rp_scope scope = rp_scope_begin();
    bool grad = rp_set_grad_enabled(training);
    if (!status) status = rp_synchronize(device);
    uint64_t before = memory_of(device).allocated;
    rp_memory_stats_reset_peak(device);

    double begin = cli_now();
    if (!status && !training) {
        status = record(mode, &program, cli_program_forward(&program), false, &call);
    } else if (!status && mode == FUSED) {
        status = record(mode, &program, cli_program_step(&program), true, &call);
    } else if (!status) {
        if (mode != EAGER) status = record(mode, &program, cli_program_forward(&program), true, &forward);
        program.forward = forward;
        if (!status) status = record(EAGER, &program, cli_program_step(&program), true, &call);
    }

    struct runner runner = {call, program.in, cli_program_n_in(&program, training), NULL};
    for (int epoch = 0; !status && epoch < (training ? effort->epochs : 1); epoch++) {
        rp_scope of_call = rp_scope_begin();
        status = run_once(&runner);
        if (!status) status = rp_synchronize(device);
        if (!epoch) row->first_ms = 1e3 * (cli_now() - begin);
        if (!status && training) row->loss[epoch] = rp_item_f64(runner.out);
        if (!status) status = add_values(values, runner.out);
        rp_scope_end(of_call, NULL, 0);
    }
    for (size_t i = 0; !status && training && i < program.n_params; i++) {
        status = add_values(values, program.params[i]);
    }
    if (!status) status = cli_measure(run_once, &runner, device, effort->seconds, &row->times);
    row->memory = (int64_t)(memory_of(device).allocated_peak - before);

    rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    rp_compiled_release(call);
    rp_compiled_release(forward);
    cli_program_release(&program);
    return status;
}

/* Takes the thread's error into the row. */
static void keep_reason(struct row *row, rp_status status) {
    row->status = status;
    const char *message = rp_error_message();
    snprintf(row->reason, sizeof row->reason, "%s: %s", rp_status_name(status), message);
    row->reason[strcspn(row->reason, "\n")] = 0;
    rp_error_take();
}

/* ---------------------------------------------------------------- output */

static void print_bytes(int64_t bytes) {
    const double kib = (double)bytes / 1024;
    if (bytes < 10 * 1024) {
        printf("%7lld B", (long long)bytes);
    } else if (kib < 1000) {
        printf("%5.1f KiB", kib);
    } else {
        printf("%5.*f MiB", kib < 1000 * 1024 ? 1 : 0, kib / 1024);
    }
}

static void print_number(int width, double x) { printf("%*.*f ", width, x < 1e4 ? 2 : 0, x); }

/* Beside a row's name, in lines of a terminal's width. */
static void print_reason(const char *reason) {
    enum { LEFT = 20, RIGHT = 79 };
    int column = LEFT;
    for (const char *word = reason; *word;) {
        int length = (int)strcspn(word, " ");
        if (column > LEFT && column + 1 + length > RIGHT) {
            printf("\n%*s", LEFT, "");
            column = LEFT;
        }
        column += printf("%s%.*s", column > LEFT ? " " : "", length, word);
        word += length + (word[length] == ' ');
    }
    putchar('\n');
}

static const char *row_name(enum mode mode, bool training) {
    return mode == FUSED && training ? "fused whole step" : mode_names[mode];
}

static void print_table(const char *title, bool training, const struct effort *effort, const struct row *rows) {
    printf("\n%s\n", title);
    if (training && !rows[EAGER].reason[0]) {
        printf("  loss of epochs 1 to %d, eager:\n ", effort->epochs);
        for (int i = 0; i < effort->epochs; i++) {
            printf(" %.4g", rows[EAGER].loss[i]);
        }
        putchar('\n');
    }
    printf("  %-17s %8s %10s %9s %9s %9s %9s\n", "", "host us", "latency us", "period us", "first ms", "memory",
           "differs");
    for (enum mode m = EAGER; m < MODES; m++) {
        const struct row *r = rows + m;
        if (!is_measured(effort, m)) continue;
        printf("  %-17s ", row_name(m, training));
        if (r->reason[0]) {
            print_reason(r->reason);
            continue;
        }
        print_number(8, r->times.host_us);
        print_number(10, r->times.latency_us);
        print_number(9, r->times.period_us);
        print_number(9, r->first_ms);
        print_bytes(r->memory);
        printf(" %9.3g\n", r->difference);
    }
    fflush(stdout);
}

static json_t *rows_to_json(const char *title, bool training, const struct effort *effort, const struct row *rows) {
    json_t *list = json_array();
    for (enum mode m = EAGER; m < MODES; m++) {
        const struct row *r = rows + m;
        if (!is_measured(effort, m)) continue;
        json_t *one = json_pack("{s:s}", "mode", row_name(m, training));
        if (r->reason[0]) {
            json_object_set_new(one, "reason", json_string(r->reason));
        } else {
            json_object_set_new(one, "host_us", json_real(r->times.host_us));
            json_object_set_new(one, "latency_us", json_real(r->times.latency_us));
            json_object_set_new(one, "period_us", json_real(r->times.period_us));
            json_object_set_new(one, "first_ms", json_real(r->first_ms));
            json_object_set_new(one, "memory_bytes", json_integer(r->memory));
            json_object_set_new(one, "calls", json_integer((json_int_t)r->times.calls));
            /* JSON has no number for "not comparable". */
            json_object_set_new(one, "difference", isfinite(r->difference) ? json_real(r->difference) : json_null());
            json_t *losses = training ? json_array() : NULL;
            for (int i = 0; training && i < effort->epochs; i++) {
                json_array_append_new(losses, json_real(r->loss[i]));
            }
            if (training) json_object_set_new(one, "loss", losses);
        }
        json_array_append_new(list, one);
    }
    return json_pack("{s:s, s:o}", "title", title, "rows", list);
}

/* All modes of one model. Adds to *failed if a mode failed that this machine should have. */
static void compare_modes(const struct model_kind *kind, bool training, const struct effort *effort, const char *title,
                          rp_device device, json_t *doc, bool *failed) {
    struct values eager = {NULL, 0}, other = {NULL, 0};
    struct row rows[MODES] = {0};
    for (enum mode m = EAGER; m < MODES; m++) {
        struct values *v = m == EAGER ? &eager : &other;
        if (!is_measured(effort, m)) continue;
        rp_status status = measure_mode(kind, m, training, effort, device, rows + m, v);
        if (!status) {
            rows[m].difference = difference(&eager, v);
            if (!isfinite(rows[m].difference)) *failed = true;
            continue;
        }
        keep_reason(rows + m, status);
        if (status != RP_ERROR_UNAVAILABLE) *failed = true;
    }
    free(eager.x);
    free(other.x);
    if (doc) {
        json_array_append_new(doc, rows_to_json(title, training, effort, rows));
    } else {
        print_table(title, training, effort, rows);
    }
}

/* ---------------------------------------------------------------- the command */

static error_t parse(int key, char *arg, struct argp_state *state) {
    struct demo_options *o = state->input;
    char *end;
    switch (key) {
    case 't': o->text = arg; return 0;
    case 'd':
        if (strcmp(arg, "cpu") && strcmp(arg, "cuda"))
            argp_error(state, "--device is cpu or cuda, not '%s'", cli_shown(arg));
        o->device = arg;
        return 0;
    case 's':
        o->seconds = strtod(arg, &end);
        if (*end || !(o->seconds > 0) || !isfinite(o->seconds))
            argp_error(state, "--seconds: '%s' is no time", cli_shown(arg));
        return 0;
    case 'n':
        o->steps = strtoul(arg, &end, 10);
        if (*end || *arg < '0' || *arg > '9' || o->steps < 1 || o->steps > MOST_STEPS)
            argp_error(state, "--steps: '%s' is no number from 1 to %d", cli_shown(arg), MOST_STEPS);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int run(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"text", 't', "FILE", 0, "The text to learn from, instead of a licence text of the system", 0},
        {"device", 'd', "cpu|cuda", 0, "Where to compute; a GPU is used where there is one", 0},
        {"seconds", 's', "N", 0, "Time for training the language model, at most (45)", 0},
        {"steps", 'n', "N", 0, "Steps of training the language model, at most (3000)", 0},
        {0},
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc =
            "Runs sin(2x), a small network, ResNet-18, BERT and a language model eagerly and recorded, and compares the "
            "modes: host time "
            "until a call returns, latency until its result is there, period of calls in a row (medians), time to the "
            "first result, peak memory beyond model and input, and the largest difference to eager.",
    };
    struct demo_options o = {.seconds = 45, .steps = 3000};
    if (cli_parse(&argp, argc, argv, &o.common)) return CLI_USAGE;

    rp_device device = rp_cpu();
    if (o.device ? !strcmp(o.device, "cuda") : rp_device_available(rp_cuda(0))) device = rp_cuda(0);
    if (!rp_device_available(device)) {
        fputs("reprise demo: there is no CUDA device; `reprise doctor` says why\n", stderr);
        return CLI_FAILED;
    }
    if (rp_set_default_device(device)) {
        fprintf(stderr, "reprise demo: %s\n", rp_error_message());
        return CLI_FAILED;
    }
    struct cli_text text;
    int code = cli_text_load(&text, o.text);
    if (code) return code;

    const char *device_name = device.type == RP_DEVICE_CUDA ? "cuda" : "cpu";
    json_t *tables = o.common.json ? json_array() : NULL;
    bool failed = false;
    if (!tables) {
        printf("reprise %s on %s, %d thread%s\n", rp_version_string(), device_name, rp_num_threads(),
               rp_num_threads() == 1 ? "" : "s");
    }
    static const struct {
        const char *model;
        bool training;
        const struct effort *effort;
        const char *title;
    } parts[] = {
        {"simple", false, &SMALL, "1. sin(2x), 5 numbers: inference"},
        {"simple", true, &SMALL, "1. sin(2x), 5 numbers: epochs of Adam on sum(y - 1)"},
        {"mlp", false, &SMALL, "2. MLP 10-64-10, batch 64: inference"},
        {"mlp", true, &SMALL, "2. MLP 10-64-10, batch 64: steps of Adam on cross-entropy"},
        {"resnet18", false, &LARGE, "3. ResNet-18, 1 x 3 x 224 x 224: inference"},
        {"bert", false, &LARGE, "4. BERT base with its masked-LM head, 12 tokens: inference"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        compare_modes(model_find(parts[i].model), parts[i].training, parts[i].effort, parts[i].title, device, tables,
                      &failed);

    if (!tables) printf("\n5. Language model of characters, whole step compiled\n");
    struct cli_text_result result;
    rp_status status = cli_text_train(&text, device, o.seconds, o.steps, tables != NULL, &result);
    if (status) {
        fprintf(stderr, "reprise demo: language model: %s: %s\n", rp_status_name(status), rp_error_message());
        rp_error_take();
        failed = true;
    }
    if (tables) {
        json_t *doc =
            json_pack("{s:s, s:s, s:i, s:o, s:o}", "version", rp_version_string(), "device", device_name, "threads",
                      rp_num_threads(), "tables", tables, "language_model", cli_text_to_json(&text, &result));
        code = cli_print_json(doc);
    }
    cli_text_free(&text);
    return failed ? CLI_FAILED : code;
}

const struct cli_command cli_cmd_demo = {"demo", "train and run models, eagerly and recorded", run};
