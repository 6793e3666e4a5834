/* `reprise ops`: the op table, as the library tells it. */
#include "cli.h"

#include <reprise.h>
#include <stdio.h>

static const struct {
    uint32_t flag;
    const char *name;
} flags[] = {
    {RP_OP_INPLACE, "in-place"},
    {RP_OP_VIEW, "view"},
    {RP_OP_RANDOM, "random"},
    {RP_OP_SYNC, "sync"},
    {RP_OP_NONDETERMINISTIC, "nondeterministic"},
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

static json_t *op_to_json(const rp_op_info *op) {
    json_t *names = json_array();
    for (size_t i = 0; i < N_FLAGS; i++) {
        if (op->flags & flags[i].flag) json_array_append_new(names, json_string(flags[i].name));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:b, s:o}", "name", op->name, "schema", op->schema, "doc", op->doc,
                     "lowering", op->lowering, "differentiable", op->differentiable, "flags", names);
}

static void print_op(const rp_op_info *op) {
    printf("%s\n    %s\n    %s%s", op->schema, op->doc, op->lowering, op->differentiable ? ", differentiable" : "");
    for (size_t i = 0; i < N_FLAGS; i++) {
        if (op->flags & flags[i].flag) printf(", %s", flags[i].name);
    }
    putchar('\n');
}

static int run(int argc, char **argv) {
    struct cli_options options = {0};
    static const struct argp argp = {.doc =
                                         "Lists the ops: schema, meaning, how each is computed, and its properties."};
    int code = cli_parse(&argp, argc, argv, &options);
    if (code) return code;
    json_t *list = options.json ? json_array() : NULL;
    size_t n = rp_op_count();
    for (size_t i = 0; i < n; i++) {
        rp_op_info op;
        if (rp_op_info_get(i, &op)) {
            fprintf(stderr, "reprise ops: %s\n", rp_error_message());
            json_decref(list);
            return CLI_FAILED;
        }
        if (list) {
            json_array_append_new(list, op_to_json(&op));
        } else {
            print_op(&op);
        }
    }
    if (list) return cli_print_json(list);
    printf("%zu ops\n", n);
    return CLI_OK;
}

const struct cli_command cli_cmd_ops = {"ops", "list the ops, their arguments and properties", run};
