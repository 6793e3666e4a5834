/* `reprise cache --warm`: compiles models on the CPU and on a GPU, so that their kernels lie in the cache when a program needs them. For
 * a GPU that is not here the kernels are compiled and nothing runs. */
#include "cli.h"
#include "program.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 64 };

struct cache_options {
    struct cli_options common;
    const char *names[MOST], *arch;
    size_t n;
    bool warm;
};

static bool is_architecture(const char *text) {
    if (strncmp(text, "sm_", 3) != 0 || !isdigit((unsigned char)text[3])) return false;
    text += 3 + strspn(text + 3, "0123456789");
    if (*text == ':' && isdigit((unsigned char)text[1])) text += 1 + strspn(text + 1, "0123456789");
    return *text == 0;
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    struct cache_options *o = state->input;
    switch (key) {
    case 'w': o->warm = true; return 0;
    case 'a':
        if (!is_architecture(arg)) argp_error(state, "--arch: '%s' is not sm_ and a number", cli_shown(arg));
        o->arch = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (o->n == MOST) argp_error(state, "%d models are the most", MOST);
        o->names[o->n++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->warm) argp_error(state, "--warm is what there is to do");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Forward in evaluation and, of what is trained, a whole step. */
static rp_status warm(const struct model_kind *kind, bool step) {
    const struct cli_program_options defaults = {0};
    const rp_compile_options options = {.struct_size = sizeof options, .wait = true};
    struct cli_program p = {.n_params = 0};
    rp_scope scope = rp_scope_begin();
    rp_status status = cli_program_make(&p, kind, &defaults);
    rp_compiled *f = NULL;
    if (!status) f = cli_program_compile(&p, step ? cli_program_step(&p) : cli_program_forward(&p), &options);
    if (!status && rp_failed()) status = rp_error_status();
    if (!status && !step && p.model.module) status = rp_module_set_training(p.model.module, false);
    (void)rp_set_grad_enabled(step);
    for (int call = 0; call < 2 && !status; call++) {
        rp_tensor *out = NULL;
        status = rp_call(f, p.in, cli_program_n_in(&p, step), &out, 1);
    }
    if (!status) status = rp_synchronize(rp_default_device());
    rp_compiled_release(f);
    cli_program_release(&p);
    (void)rp_scope_end(scope, NULL, 0);
    return status;
}

static double seconds(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int warm_all(const struct cache_options *o, const char *where, json_t *list) {
    for (size_t k = 0; k < o->n; k++) {
        const struct model_kind *kind = model_find(o->names[k]);
        const double start = seconds();
        rp_status status = warm(kind, false);
        if (!status && cli_program_trains(kind)) status = warm(kind, true);
        if (status) {
            fprintf(stderr, "reprise cache: %s on %s: %s: %s\n", kind->name, where, rp_status_name(status),
                    rp_error_message());
            (void)rp_error_take();
            return CLI_FAILED;
        }
        const double took = seconds() - start;
        if (list)
            json_array_append_new(list,
                                  json_pack("{s:s, s:s, s:f}", "model", kind->name, "device", where, "seconds", took));
        else
            printf("%-16s %s: %.2f s\n", kind->name, where, took);
        fflush(stdout);
    }
    return CLI_OK;
}

static int run(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"warm", 'w', NULL, 0, "Compile the kernels of the models", 0},
        {"arch", 'a', "sm_NN[:N]", 0,
         "For a GPU of this architecture (with N multiprocessors), which need not be here; NVRTC must be", 0},
        {0},
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "[MODEL...]",
        .doc =
            "Fills the cache of compiled kernels, so that a first call compiles nothing: forward functions and training "
            "steps of the models (by default the small ones, whose kernels are those of most programs), on the CPU and on a GPU.",
    };
    static const char *const usual[] = {"simple", "trig", "rows", "chars", "mlp", "cnn", "rnn"};
    struct cache_options o = {0};
    if (cli_parse(&argp, argc, argv, &o.common)) return CLI_USAGE;
    for (size_t k = 0; k < o.n; k++) {
        if (model_find(o.names[k])) continue;
        cli_no_model("cache", o.names[k]);
        return CLI_USAGE;
    }
    if (o.n == 0) {
        o.n = sizeof usual / sizeof *usual;
        memcpy(o.names, usual, sizeof usual);
    }
    if (o.arch && setenv("REPRISE_CUDA_OFFLINE", o.arch, 1) != 0) return CLI_FAILED;
    json_t *list = o.common.json ? json_array() : NULL;
    rp_set_default_device(rp_cpu());
    int code = warm_all(&o, "cpu", list);
    if (code == CLI_OK && rp_device_available(rp_cuda(0))) {
        rp_set_default_device(rp_cuda(0));
        code = warm_all(&o, o.arch ? o.arch : "cuda", list);
    } else if (code == CLI_OK && o.arch) {
        fprintf(stderr, "reprise cache: %s: %s\n", o.arch, rp_error_message());
        code = CLI_FAILED;
    }
    if (code == CLI_OK && list) return cli_print_json(list);
    json_decref(list);
    return code;
}

const struct cli_command cli_cmd_cache = {"cache", "compile the kernels of models before a program needs them", run};
