/* `reprise export`: a model, or a graph in text form, as an ONNX file. Uses the public interface alone. */
#include "cli.h"
#include "graph_file.h"
#include "program.h"

#include <reprise_io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct export_options {
    struct cli_options common;
    const char *name, *path;
    int opset;
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    struct export_options *o = state->input;
    char *end;
    switch (key) {
    case 'o':
        o->opset = (int)strtol(arg, &end, 10);
        if (*end || o->opset < 17 || o->opset > 22)
            argp_error(state, "--opset is a number from 17 to 22, not %s", cli_shown(arg));
        return 0;
    case ARGP_KEY_ARG:
        if (o->path) argp_error(state, "a model and a file");
        if (o->name)
            o->path = arg;
        else
            o->name = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->path) argp_error(state, "a model, or a graph, and the file to write");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static rp_status export_model(const struct export_options *o, const struct model_kind *kind) {
    struct cli_program p;
    const struct cli_program_options defaults = {0};
    rp_status status = cli_program_make(&p, kind, &defaults);
    if (status) return status;
    rp_onnx_options options = {.struct_size = sizeof options, .opset = o->opset};
    if (p.model.module) {
        status = rp_module_set_training(p.model.module, false);
        options.weights = rp_module_state(p.model.module, &options.n_weights);
    }
    rp_set_grad_enabled(false);
    if (!status) {
        rp_ir *ir = rp_trace(cli_program_forward(&p), p.in, cli_program_n_in(&p, false), 1);
        status = rp_failed() ? rp_error_status() : rp_onnx_save(o->path, ir, &options);
        rp_ir_release(ir);
    }
    cli_program_release(&p);
    return status;
}

static int export_graph(const struct export_options *o, rp_status *status) {
    char why[256];
    size_t n;
    char *text = cli_read(o->name, CLI_GRAPH_BYTES, &n, why, sizeof why);
    if (!text) {
        if (cli_is_graph(o->name))
            fprintf(stderr, "reprise export: %s: %s\n", cli_shown(o->name), why);
        else
            cli_no_model("export", o->name);
        return CLI_FAILED;
    }
    rp_ir *ir = rp_ir_parse(text, n);
    free(text);
    *status = rp_failed() ? rp_error_status() : rp_ir_check(ir);
    if (!*status) *status = rp_onnx_save(o->path, ir, RP_OPTIONS(rp_onnx_options, .opset = o->opset));
    rp_ir_release(ir);
    return CLI_OK;
}

static int run(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"opset", 'o', "N", 0, "Version of the operators, 17 to 22; by default 21", 0},
        {0},
    };
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "MODEL | FILE OUT.onnx",
        .doc =
            "Writes the forward function of a model (`reprise run -l` names them), or a graph in text form from FILE (- is "
            "standard input), as an ONNX model. Weights of 1 MiB and more lie beside it, in OUT.onnx.data.",
    };
    struct export_options o = {0};
    rp_status status = RP_OK;
    if (cli_parse(&argp, argc, argv, &o.common)) return CLI_USAGE;
    const struct model_kind *kind = model_find(o.name);
    int code = CLI_OK;
    if (kind)
        status = export_model(&o, kind);
    else
        code = export_graph(&o, &status);
    if (!status) return code;
    fprintf(stderr, "reprise export: %s: %s\n", rp_status_name(status), rp_error_message());
    return CLI_FAILED;
}

const struct cli_command cli_cmd_export = {"export", "write a model or a graph as an ONNX file", run};
