/* `reprise explain`: compiles one of the shared models, or a graph in text form, calls it, and prints what the compiler says of it. */
#include "cli.h"
#include "graph_file.h"
#include "model_options.h"
#include "program.h"

#include <stdio.h>
#include <string.h>

enum { CALLS = 3 }; /* the first traces, the second is compared with it, the third plays back */

struct explain_options {
    struct cli_options common;
    struct cli_graph graph; /* where the name is a file's */
    struct cli_model_options model;
    const char *name, *backend;
    bool train;
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    struct explain_options *o = state->input;
    char why[256];
    switch (key) {
    case 'b': o->backend = arg; return 0;
    case 't': o->train = true; return 0;
    case 'i':
        if (!cli_input_add(&o->graph, arg, why, sizeof why)) argp_error(state, "--input %s: %s", cli_shown(arg), why);
        return 0;
    case ARGP_KEY_ARG:
        if (o->name) argp_error(state, "one model at a time");
        o->name = arg;
        return 0;
    case ARGP_KEY_NO_ARGS: o->name = "mlp"; return 0;
    default: return cli_model_option(&o->model, key, arg, state) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static json_t *entry_to_json(const rp_explain_entry *e) {
    return json_pack("{s:s, s:s, s:s, s:s, s:I, s:s}", "kind", e->kind, "reason", e->reason, "message", e->message,
                     "site", e->site, "count", (json_int_t)e->count, "of", e->of);
}

static void print_entry(const rp_explain_entry *e) {
    printf("%-15s %s", e->kind, e->message);
    if (*e->reason) printf(" [%s]", e->reason);
    if (*e->site) printf(" at %s", e->site);
    if (e->count != 1) printf(" (%lld)", (long long)e->count);
    putchar('\n');
}

static rp_status explain(struct cli_program *p, const struct explain_options *o, rp_compiled **f) {
    const rp_compile_options options = {.struct_size = sizeof options, .backend = o->backend};
    rp_tensor *out = NULL;
    *f = cli_program_compile(p, o->train ? cli_program_step(p) : cli_program_forward(p), &options);
    rp_status status = rp_failed() ? rp_error_status() : RP_OK;
    if (!status && !o->train && p->model.module) status = rp_module_set_training(p->model.module, false);
    rp_set_grad_enabled(o->train);
    for (int i = 0; !status && i < CALLS; i++) {
        status = rp_call(*f, p->in, cli_program_n_in(p, o->train), &out, 1);
    }
    return status ? status : rp_synchronize(rp_default_device());
}

static rp_status explain_graph(const struct explain_options *o, rp_compiled **f, rp_ir **ir) {
    rp_tensor *in[CLI_MAX_GRAPH_INPUTS] = {NULL}, *out[CLI_MAX_GRAPH_INPUTS] = {NULL};
    *f = cli_graph_compile(&o->graph, o->backend, ir);
    rp_status status = rp_failed() ? rp_error_status() : RP_OK;
    rp_set_grad_enabled(false);
    for (int i = 0; !status && i < CALLS; i++) {
        rp_scope scope = rp_scope_begin();
        status = cli_graph_inputs(&o->graph, "explain", in);
        if (!status) status = rp_call(*f, in, o->graph.n_in, out, o->graph.n_out);
        rp_scope_end(scope, NULL, 0);
    }
    return status ? status : rp_synchronize(rp_default_device());
}

static int run(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"backend", 'b', "NAME", 0, "The backend; `reprise backends` lists them", 0},
        {"train", 't', NULL, 0, "The whole training step instead of the forward function", 0},
        {"input", 'i', "INPUT", 0, "Of the next argument of a graph, as for `reprise run`", 0},
        CLI_MODEL_OPTIONS,
        {0},
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "[MODEL | FILE]",
        .doc =
            "Compiles a model (`reprise run -l` names them; by default mlp), or a graph in text form from FILE (- is "
            "standard input), and says how: kernels, library calls, "
            "what was not fused and why, copies, graph breaks, memory.",
    };
    struct explain_options o = {0};
    if (cli_parse(&argp, argc, argv, &o.common)) return CLI_USAGE;
    const struct model_kind *kind = model_find(o.name);
    const bool graph = !kind && cli_is_graph(o.name);
    if ((!kind && !graph) || (o.train && (graph || !cli_program_trains(kind)))) {
        if (kind || graph)
            fprintf(stderr, "reprise explain: '%s' is not trained\n", cli_shown(o.name));
        else
            cli_no_model("explain", o.name);
        return CLI_USAGE;
    }
    if (o.backend && !cli_is_backend("explain", o.backend)) return CLI_USAGE;
    if (kind && o.graph.n_inputs) {
        fputs("reprise explain: --input is for graphs; a model has inputs of its own\n", stderr);
        return CLI_USAGE;
    }
    if (graph && o.model.given) {
        fputs("reprise explain: --weights, --prefix, --dtype, --batch, --length and --device are for models\n", stderr);
        return CLI_USAGE;
    }
    if (kind && !cli_model_fits(&o.model, "explain", kind)) return CLI_USAGE;
    if (graph) {
        const int loaded = cli_graph_load(&o.graph, "explain", o.name);
        if (loaded) return loaded;
    }
    const int device = cli_model_device(&o.model, "explain");
    if (device) {
        cli_graph_free(&o.graph);
        return device;
    }
    struct cli_program program = {.n_params = 0};
    rp_compiled *f = NULL;
    rp_ir *ir = NULL;
    rp_status status = graph ? explain_graph(&o, &f, &ir) : cli_program_make(&program, kind, &o.model.program);
    if (!status && !graph) status = explain(&program, &o, &f);
    json_t *list = o.common.json ? json_array() : NULL;
    char of[256] = "";
    for (size_t i = 0; !status && i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        status = rp_explain_get(f, i, &e);
        if (status) break;
        if (list) {
            json_array_append_new(list, entry_to_json(&e));
        } else {
            if (strcmp(of, e.of) != 0) printf("%s:\n", e.of);
            snprintf(of, sizeof of, "%s", e.of);
            print_entry(&e);
        }
    }
    int code = CLI_OK;
    if (status && graph) {
        json_decref(list);
        code = cli_graph_failed(&o.graph, "explain", status);
    } else if (status) {
        fprintf(stderr, "reprise explain: %s: %s\n", rp_status_name(status), rp_error_message());
        json_decref(list);
        code = CLI_FAILED;
    } else if (list) {
        code = cli_print_json(list);
    }
    rp_compiled_release(f);
    rp_ir_release(ir);
    cli_program_release(&program);
    cli_graph_free(&o.graph);
    return code;
}

const struct cli_command cli_cmd_explain = {"explain", "say how a function was compiled, and the reason for each thing",
                                            run};
