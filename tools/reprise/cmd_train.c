/* `reprise train`: steps of Adam on a model of the table, on random arguments that stay the same, by one backend or
 * several: losses, times, and whether all of them end in the same weights. */
#include "cli.h"
#include "measure.h"
#include "model_options.h"

#include <math.h>
#include <reprise_io.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BACKENDS = 8, MOST_STEPS = 1000000000, LINES = 20 };

struct train_options {
    struct cli_options common;
    struct cli_model_options model;
    const char *name, *save;
    char *backends;
    size_t steps;
    bool compare;
};

/* What one backend did. */
struct training {
    double *losses;
    double seconds, first_ms; /* seconds: of the steps behind the first two, which record and compare */
    size_t elements;
    double *weights; /* all parameters, for --compare */
};

static rp_status keep_weights(const struct cli_program *p, struct training *t) {
    for (size_t i = 0; i < p->n_params; i++) t->elements += (size_t)rp_numel(p->params[i]);
    t->weights = malloc((t->elements + 1) * sizeof *t->weights);
    if (!t->weights) return RP_ERROR_OUT_OF_MEMORY;
    double *at = t->weights;
    for (size_t i = 0; i < p->n_params; i++) {
        const size_t n = (size_t)rp_numel(p->params[i]);
        rp_status status = rp_to_host(rp_to_dtype(rp_detach(p->params[i]), RP_F64), at, n * sizeof *at);
        if (status) return status;
        at += n;
    }
    return RP_OK;
}

static rp_status train(const struct train_options *o, const struct model_kind *kind, const char *backend, bool print,
                       struct training *t) {
    struct cli_program p;
    const rp_compile_options options = {.struct_size = sizeof options, .backend = backend, .wait = true};
    const rp_device device = rp_default_device();
    rp_status status = cli_program_make(&p, kind, &o->model.program);
    if (status) return status;
    t->losses = calloc(o->steps + 1, sizeof *t->losses);
    rp_compiled *f = cli_program_compile(&p, cli_program_step(&p), &options);
    if (!t->losses) status = RP_ERROR_OUT_OF_MEMORY;
    if (!status && rp_failed()) status = rp_error_status();
    double begin = cli_now(), all = begin;
    for (size_t i = 0; i < o->steps && !status; i++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *loss = NULL;
        status = rp_call(f, p.in, cli_program_n_in(&p, true), &loss, 1);
        /* Reading a loss waits for the device: that of every step only where all are wanted. */
        const bool shown = o->common.json || i + 1 == o->steps || i % ((o->steps + LINES - 1) / LINES) == 0;
        if (!status && shown) t->losses[i] = rp_item_f64(loss);
        if (!status && rp_failed()) status = rp_error_status();
        rp_scope_end(scope, NULL, 0);
        if (!status && print && shown) printf("  step %-8zu loss %.6g\n", i + 1, t->losses[i]);
        fflush(stdout);
        if (i == 0) t->first_ms = 1e3 * (cli_now() - all);
        if (i == 1) begin = cli_now();
    }
    if (!status) status = rp_synchronize(device);
    t->seconds = cli_now() - begin;
    if (!status && o->compare) status = keep_weights(&p, t);
    if (!status && o->save && print)
        status =
            rp_save(o->save, p.model.module, RP_OPTIONS(rp_save_options, .optimizer = p.optimizer, .random = true));
    rp_compiled_release(f);
    cli_program_release(&p);
    return status;
}

static double largest_difference(const struct training *a, const struct training *b) {
    double largest = 0;
    for (size_t i = 0; i < a->elements && i < b->elements; i++) {
        const double d = fabs(a->weights[i] - b->weights[i]);
        if (!(d <= largest) && !(isnan(a->weights[i]) && isnan(b->weights[i]))) largest = d;
    }
    return largest;
}

/* ---------------------------------------------------------------- the command */

static error_t parse(int key, char *arg, struct argp_state *state) {
    struct train_options *o = state->input;
    char *end;
    switch (key) {
    case 'b': o->backends = arg; return 0;
    case 'c': o->compare = true; return 0;
    case 'o': o->save = arg; return 0;
    case 'n':
        o->steps = strtoul(arg, &end, 10);
        if (*end || *arg < '0' || *arg > '9' || o->steps < 1 || o->steps > MOST_STEPS)
            argp_error(state, "--steps: '%s' is no number from 1 to %d", cli_shown(arg), MOST_STEPS);
        return 0;
    case 'r':
        o->model.program.rate = strtod(arg, &end);
        if (end == arg || *end || !(o->model.program.rate > 0) || !isfinite(o->model.program.rate))
            argp_error(state, "--rate: '%s' is no learning rate", cli_shown(arg));
        return 0;
    case 's':
        o->model.program.seed = strtoull(arg, &end, 10);
        if (*end || *arg < '0' || *arg > '9') argp_error(state, "--seed: '%s' is no number", cli_shown(arg));
        return 0;
    case ARGP_KEY_ARG:
        if (o->name) argp_error(state, "one model at a time");
        o->name = arg;
        return 0;
    case ARGP_KEY_NO_ARGS: argp_usage(state); return 0;
    default: return cli_model_option(&o->model, key, arg, state) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static json_t *to_json(const struct train_options *o, const char *backend, const struct training *t,
                       double difference) {
    json_t *losses = json_array();
    for (size_t i = 0; i < o->steps; i++)
        json_array_append_new(losses, isfinite(t->losses[i]) ? json_real(t->losses[i]) : json_null());
    json_t *one = json_pack("{s:s, s:f, s:f, s:o}", "backend", backend, "first_ms", t->first_ms, "step_us",
                            o->steps > 2 ? 1e6 * t->seconds / (double)(o->steps - 2) : 0.0, "loss", losses);
    if (o->compare) json_object_set_new(one, "difference", isfinite(difference) ? json_real(difference) : json_null());
    return one;
}

static int run(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"steps", 'n', "N", 0, "Steps of training (100)", 0},
        {"rate", 'r', "X", 0, "The learning rate of Adam (the model's own, mostly 0.001)", 0},
        {"backend", 'b', "NAME,...", 0, "What records the whole step (fused; with --compare: eager, fused)", 0},
        {"compare", 'c', NULL, 0, "Fails where the weights that the backends end with are not the same bits", 0},
        {"output", 'o', "FILE", 0, "Writes weights, optimizer and random state there (.safetensors)", 0},
        {"seed", 's', "N", 0, "Of random weights and arguments (1)", 0},
        CLI_MODEL_OPTIONS,
        {0},
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "MODEL",
        .doc =
            "Trains a model (`reprise run -l` names them) with Adam on random arguments, the same at every step, and "
            "prints losses and times. A function without weights is trained on its arguments. With several backends each "
            "begins with the same weights.",
    };
    struct train_options o = {.steps = 100};
    if (cli_parse(&argp, argc, argv, &o.common)) return CLI_USAGE;
    const struct model_kind *kind = model_find(o.name);
    if (!kind) {
        cli_no_model("train", o.name);
        return CLI_USAGE;
    }
    if (!cli_program_trains(kind)) {
        fprintf(stderr, "reprise train: '%s' is not trained\n", kind->name);
        return CLI_USAGE;
    }
    if (o.save && !kind->bytes) {
        fprintf(stderr, "reprise train: --output: %s has no weights\n", kind->name);
        return CLI_USAGE;
    }
    if (!cli_model_fits(&o.model, "train", kind)) return CLI_USAGE;
    char names[512], *backends[MAX_BACKENDS];
    size_t n = 0;
    snprintf(names, sizeof names, "%s", o.backends ? o.backends : o.compare ? "eager,fused" : "fused");
    for (char *save, *name = strtok_r(names, ",", &save); name && n < MAX_BACKENDS; name = strtok_r(NULL, ",", &save)) {
        if (!cli_is_backend("train", name)) return CLI_USAGE;
        backends[n++] = name;
    }
    if (n < (o.compare ? 2 : 1)) {
        fprintf(stderr, "reprise train: --backend names %zu; %s\n", n,
                o.compare ? "two or more are compared" : "one is needed");
        return CLI_USAGE;
    }
    int code = cli_model_device(&o.model, "train");
    struct training all[MAX_BACKENDS] = {{NULL, 0, 0, 0, NULL}};
    json_t *list = o.common.json ? json_array() : NULL;
    for (size_t i = 0; i < n && !code; i++) {
        struct training *t = &all[i];
        rp_scope scope = rp_scope_begin();
        if (!list) printf("%s, %s\n", kind->name, backends[i]);
        rp_status status = train(&o, kind, backends[i], !list && i == 0, t);
        rp_scope_end(scope, NULL, 0);
        if (status) {
            code = cli_model_failed("train", kind->name, status);
            break;
        }
        const double difference = o.compare && i ? largest_difference(&all[0], t) : 0;
        if (list)
            json_array_append_new(list, to_json(&o, backends[i], t, difference));
        else
            printf("  loss %.6g; first step %.1f ms, then %.2f us a step\n", t->losses[o.steps - 1], t->first_ms,
                   o.steps > 2 ? 1e6 * t->seconds / (double)(o.steps - 2) : 0.0);
        if (o.compare && i && !list)
            printf("  %s %s\n", difference == 0 ? "the same weights as" : "other weights than", backends[0]);
        if (o.compare && i && difference != 0) {
            if (!list) printf("  largest difference %.3g\n", difference);
            code = CLI_FAILED;
        }
    }
    for (size_t i = 0; i < n; i++) {
        free(all[i].losses);
        free(all[i].weights);
    }
    if (!list) return code;
    const int printed = cli_print_json(list);
    return code ? code : printed;
}

const struct cli_command cli_cmd_train = {"train", "train a model, and compare backends", run};
