/* `reprise dump`: the graph of a function in text form, the functional graphs that a backend gets, and the kernels that they
 * end in, each as its loop and as the C and CUDA C emitted for it. Uses the public interface alone: rp_trace, a backend of
 * its own that writes down what it is given, and rp_set_kernel_log. */
#include "cli.h"
#include "graph_file.h"
#include "model_options.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dump_options {
    struct cli_options common;
    struct cli_model_options model;
    const char *name;
    bool train, kernels;
};

/* Parts are printed as they come, or collected. */
struct dump {
    json_t *doc; /* NULL: print */
    rp_status status;
};

static void add_part(struct dump *d, const char *kind, const char *text) {
    if (d->doc) {
        json_array_append_new(d->doc, json_pack("{s:s, s:s}", "part", kind, "text", text));
    } else {
        printf("---- %s\n%s%s", kind, text, *text && text[strlen(text) - 1] == '\n' ? "" : "\n");
    }
}

static rp_status add_graph(struct dump *d, const char *kind, const rp_ir *ir) {
    size_t length = rp_ir_text(ir, NULL, 0);
    char *text = malloc(length + 1);
    if (!text) return RP_ERROR_OUT_OF_MEMORY;
    rp_ir_text(ir, text, length + 1);
    add_part(d, kind, text);
    free(text);
    return RP_OK;
}

/* ---------------------------------------------------------------- a backend that writes down its graphs */

static rp_status keep_graph(void *ctx, const rp_ir *graph, void **compiled) {
    *compiled = rp_ir_retain(graph);
    return add_graph(ctx, "functional graph", graph);
}

static rp_status run_graph(void *ctx, void *compiled, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                           size_t n_out) {
    (void)ctx;
    return rp_ir_run(compiled, in, n_in, out, n_out);
}

static void drop_graph(void *ctx, void *compiled) {
    (void)ctx;
    rp_ir_release(compiled);
}

/* ---------------------------------------------------------------- kernels */

static void log_kernel(void *ctx, const char *op, const char *site, const char *loop, const char *c, const char *cuda) {
    char kind[256];
    snprintf(kind, sizeof kind, "kernel %s%s%s", op, *site ? " at " : "", site);
    add_part(ctx, kind, loop);
    if (*c) add_part(ctx, "C", c);
    if (*cuda) add_part(ctx, "CUDA C", cuda);
}

/* ---------------------------------------------------------------- a model, or a file */

static rp_fn function(struct cli_program *p, bool train) {
    return train ? cli_program_step(p) : cli_program_forward(p);
}

static rp_status call_with(struct cli_program *p, const char *backend, bool train) {
    const rp_compile_options options = {.struct_size = sizeof options, .backend = backend};
    rp_compiled *f = cli_program_compile(p, function(p, train), &options);
    rp_tensor *out = NULL;
    rp_status status = rp_failed() ? rp_error_status() : RP_OK;
    /* A graph reaches its backend at the latest when it is played back for the first time. */
    for (int i = 0; !status && i < 3; i++) {
        status = rp_call(f, p->in, cli_program_n_in(p, train), &out, 1);
    }
    rp_compiled_release(f);
    return status;
}

static rp_status dump_model(struct dump *d, const struct model_kind *kind, const struct cli_program_options *options,
                            bool train) {
    struct cli_program p;
    rp_status status = cli_program_make(&p, kind, options);
    if (status) return status;
    const size_t n_in = cli_program_n_in(&p, train);
    if (!train && p.model.module) status = rp_module_set_training(p.model.module, false);
    rp_set_grad_enabled(train);
    rp_ir *ir = NULL;
    if (!status) {
        ir = rp_trace(function(&p, train), p.in, n_in, 1);
        status = rp_failed() ? rp_error_status() : add_graph(d, "graph", ir);
        rp_ir_release(ir);
    }
    if (!status) {
        const rp_backend backend = {sizeof backend, "dump", keep_graph, run_graph, drop_graph, d};
        status = rp_register_backend(&backend);
    }
    if (!status) status = call_with(&p, "dump", train);
    if (!status) {
        /* The first call computes op by op while it records; only what the compiler makes of it is wanted. */
        const rp_compile_options waiting = {.struct_size = sizeof waiting, .wait = true};
        rp_compiled *f = cli_program_compile(&p, function(&p, train), &waiting);
        rp_tensor *out = NULL;
        status = rp_failed() ? rp_error_status() : rp_call(f, p.in, n_in, &out, 1);
        rp_set_kernel_log(log_kernel, d, NULL);
        if (!status) status = rp_call(f, p.in, n_in, &out, 1);
        rp_set_kernel_log(NULL, NULL, NULL);
        rp_compiled_release(f);
    }
    cli_program_release(&p);
    return status;
}

/* The kernels of a graph, on random arguments. */
static rp_status dump_kernels(struct dump *d, const struct cli_graph *g) {
    rp_tensor *in[CLI_MAX_GRAPH_INPUTS] = {NULL}, *out[CLI_MAX_GRAPH_INPUTS] = {NULL};
    rp_ir *ir = NULL;
    rp_set_grad_enabled(false);
    rp_scope scope = rp_scope_begin();
    rp_status status = cli_graph_inputs(g, "dump", in);
    rp_compiled *f = status ? NULL : cli_graph_compile(g, "fused", &ir);
    /* The first call computes op by op while it records; only what the compiler makes of it is wanted. */
    if (!status) status = rp_failed() ? rp_error_status() : rp_call(f, in, g->n_in, out, g->n_out);
    rp_set_kernel_log(log_kernel, d, NULL);
    if (!status) status = rp_call(f, in, g->n_in, out, g->n_out);
    rp_set_kernel_log(NULL, NULL, NULL);
    rp_scope_end(scope, NULL, 0);
    rp_compiled_release(f);
    rp_ir_release(ir);
    return status;
}

/* A graph in text form: parsed, checked and printed again; its kernels, where they are asked for. */
static int dump_file(struct dump *d, const char *path, bool kernels) {
    if (!cli_is_graph(path) && access(path, R_OK) != 0) {
        cli_no_model("dump", path);
        return CLI_FAILED;
    }
    struct cli_graph g = {.uncalled = !kernels};
    const int code = cli_graph_load(&g, "dump", path);
    if (code) return code;
    rp_ir *ir = rp_ir_parse(g.text, g.bytes);
    d->status = rp_failed() ? rp_error_status() : add_graph(d, "graph", ir);
    rp_ir_release(ir);
    if (!d->status && kernels) d->status = dump_kernels(d, &g);
    cli_graph_free(&g);
    return CLI_OK;
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    struct dump_options *o = state->input;
    switch (key) {
    case 't': o->train = true; return 0;
    case 'k': o->kernels = true; return 0;
    case ARGP_KEY_ARG:
        if (o->name) argp_error(state, "one model or file at a time");
        o->name = arg;
        return 0;
    case ARGP_KEY_NO_ARGS: o->name = "mlp"; return 0;
    default: return cli_model_option(&o->model, key, arg, state) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static int run(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"train", 't', NULL, 0, "The whole training step instead of the forward function", 0},
        {"kernels", 'k', NULL, 0, "Of a graph in text form: its kernels, too", 0},
        CLI_MODEL_OPTIONS,
        {0},
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "[MODEL | FILE]",
        .doc =
            "Prints a model (`reprise run -l` names them; by default mlp) as a graph in text form, as the functional "
            "graphs that backends get, and as kernels with their loops and emitted sources; or reads a graph in text form "
            "from FILE (- is standard input), checks it and prints it again, with --kernels followed by its kernels.",
    };
    struct dump_options o = {0};
    if (cli_parse(&argp, argc, argv, &o.common)) return CLI_USAGE;
    struct dump d = {.doc = o.common.json ? json_array() : NULL};
    const struct model_kind *kind = model_find(o.name);
    int code = CLI_OK;
    if (kind && o.kernels) {
        fputs("reprise dump: --kernels is for graphs in text form; of a model they are printed anyhow\n", stderr);
        code = CLI_USAGE;
    } else if (!kind && o.model.given) {
        fputs("reprise dump: --weights, --prefix, --dtype, --batch, --length and --device are for models\n", stderr);
        code = CLI_USAGE;
    } else if (!kind) {
        code = dump_file(&d, o.name, o.kernels);
    } else if (o.train && !cli_program_trains(kind)) {
        fprintf(stderr, "reprise dump: '%s' is not trained\n", o.name);
        code = CLI_USAGE;
    } else if (!cli_model_fits(&o.model, "dump", kind)) {
        code = CLI_USAGE;
    } else {
        code = cli_model_device(&o.model, "dump");
        if (!code) d.status = dump_model(&d, kind, &o.model.program, o.train);
    }
    if (d.status) {
        fprintf(stderr, "reprise dump: %s: %s\n", rp_status_name(d.status), rp_error_message());
        code = CLI_FAILED;
    }
    if (code) {
        json_decref(d.doc);
        return code;
    }
    return d.doc ? cli_print_json(d.doc) : CLI_OK;
}

const struct cli_command cli_cmd_dump = {"dump", "print the graph, the kernels and the sources of a function", run};
