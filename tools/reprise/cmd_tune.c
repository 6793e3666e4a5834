/* `reprise tune`: compiles one of the shared models with its schedules measured on this machine, and prints how each kernel runs. What
 * was measured is kept in the cache, where functions compiled with `tune`, or with REPRISE_TUNE=1, find it. */
#include "cli.h"
#include "model_options.h"
#include "program.h"

#include <stdio.h>
#include <string.h>

enum { CALLS = 2 };

struct tune_options {
    struct cli_options common;
    struct cli_model_options model;
    const char *name;
    bool train, fast;
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    struct tune_options *o = state->input;
    if (cli_model_option(&o->model, key, arg, state)) return 0;
    switch (key) {
    case 't': o->train = true; return 0;
    case 'f': o->fast = true; return 0;
    case ARGP_KEY_ARG:
        if (o->name) argp_error(state, "one model at a time");
        o->name = arg;
        return 0;
    case ARGP_KEY_NO_ARGS: o->name = "mlp"; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static rp_status tune(struct cli_program *p, const struct tune_options *o, rp_compiled **f) {
    const rp_compile_options options = {.struct_size = sizeof options,
                                        .wait = true,
                                        .tune = true,
                                        .numbers = o->fast ? RP_NUMBERS_FAST : RP_NUMBERS_DEFAULT};
    *f = cli_program_compile(p, o->train ? cli_program_step(p) : cli_program_forward(p), &options);
    rp_status status = rp_failed() ? rp_error_status() : RP_OK;
    if (!status && !o->train && p->model.module) status = rp_module_set_training(p->model.module, false);
    rp_set_grad_enabled(o->train);
    for (int i = 0; !status && i < CALLS; i++) {
        rp_tensor *out = NULL;
        rp_scope scope = rp_scope_begin();
        status = rp_call(*f, p->in, cli_program_n_in(p, o->train), &out, 1);
        (void)rp_scope_end(scope, NULL, 0);
    }
    return status ? status : rp_synchronize(rp_default_device());
}

static rp_status print(rp_compiled *f, json_t *list) {
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        const rp_status status = rp_explain_get(f, i, &e);
        if (status) return status;
        if (strcmp(e.kind, "schedule") != 0 && strcmp(e.kind, "numbers") != 0) continue;
        if (list)
            json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:I, s:s}", "kind", e.kind, "reason", e.reason,
                                                  "message", e.message, "site", e.site, "count", (json_int_t)e.count,
                                                  "of", e.of));
        else
            printf("%s [%s]%s%s\n", e.message, e.reason, *e.site ? " at " : "", e.site);
    }
    return RP_OK;
}

static int run(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"train", 't', NULL, 0, "The whole training step instead of the forward function", 0},
        {"fast", 'f', NULL, 0, "With RP_NUMBERS_FAST", 0},
        CLI_MODEL_OPTIONS,
        {0},
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "[MODEL]",
        .doc = "Measures schedules of a model's kernels on this machine (`reprise run -l` names the models; by default "
               "mlp), keeps the fastest in the cache of kernels, and prints for each kernel how it runs, its time, and "
               "the share of the rate that a copy reaches. REPRISE_TUNE=1 makes other programs use them.",
    };
    struct tune_options o = {0};
    if (cli_parse(&argp, argc, argv, &o.common)) return CLI_USAGE;
    const struct model_kind *kind = model_find(o.name);
    if (!kind) {
        cli_no_model("tune", o.name);
        return CLI_USAGE;
    }
    if (o.train && !cli_program_trains(kind)) {
        fprintf(stderr, "reprise tune: '%s' is not trained\n", cli_shown(o.name));
        return CLI_USAGE;
    }
    if (!cli_model_fits(&o.model, "tune", kind)) return CLI_USAGE;
    const int device = cli_model_device(&o.model, "tune");
    if (device) return device;
    struct cli_program program = {.n_params = 0};
    rp_compiled *f = NULL;
    json_t *list = o.common.json ? json_array() : NULL;
    rp_status status = cli_program_make(&program, kind, &o.model.program);
    if (!status) status = tune(&program, &o, &f);
    if (!status) status = print(f, list);
    int code = CLI_OK;
    if (status) {
        json_decref(list);
        code = cli_model_failed("tune", o.name, status);
    } else if (list) {
        code = cli_print_json(list);
    }
    rp_compiled_release(f);
    cli_program_release(&program);
    return code;
}

const struct cli_command cli_cmd_tune = {"tune", "measure the schedules of a model's kernels, and keep the fastest",
                                         run};
