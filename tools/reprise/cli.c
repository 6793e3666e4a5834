/* Shared pieces of the subcommands: common options, JSON output. Called by cmd_*.c. */
#include "cli.h"

#include <stdio.h>

static error_t parse_common(int key, char *arg, struct argp_state *state) {
    (void)arg;
    struct cli_options *options = state->input;
    if (key != 'j') return ARGP_ERR_UNKNOWN;
    options->json = true;
    return 0;
}

static const struct argp_option common_options[] = {
    {"json", 'j', NULL, 0, "Print one JSON document instead of text", 0},
    {0},
};

const struct argp cli_common = {.options = common_options, .parser = parse_common};

int cli_parse_common(const char *doc, int argc, char **argv, struct cli_options *options) {
    const struct argp argp = {.options = common_options, .parser = parse_common, .doc = doc};
    return argp_parse(&argp, argc, argv, 0, NULL, options) ? CLI_USAGE : CLI_OK;
}

int cli_print_json(json_t *doc) {
    if (!doc) {
        fputs("reprise: out of memory\n", stderr);
        return CLI_FAILED;
    }
    int failed = json_dumpf(doc, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    json_decref(doc);
    putchar('\n'); /* main.c says it when something could not be written */
    if (failed && !ferror(stdout)) fputs("reprise: out of memory\n", stderr);
    return failed ? CLI_FAILED : CLI_OK;
}
