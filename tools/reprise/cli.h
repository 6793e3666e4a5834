/* What the subcommands of `reprise` share: the form of a subcommand, and output as text or as JSON.
 * A subcommand is one file cmd_NAME.c; main.c finds it by its name. Nothing here is part of the library. */
#ifndef REPRISE_CLI_H
#define REPRISE_CLI_H

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>

/* Exit codes: 0 done, 1 the work failed (the library's error is on stderr), 2 wrong use. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* One subcommand. run gets argv[0] = "reprise NAME" and returns an exit code. */
struct cli_command {
    const char *name;    /* "doctor" */
    const char *summary; /* one line, no full stop */
    int (*run)(int argc, char **argv);
};

#define CLI_COMMAND(name) extern const struct cli_command cli_cmd_##name;
#include "cli_commands.inc"
#undef CLI_COMMAND

/* The options that every subcommand has; its argp names cli_common among its children, in this form:
 *     const struct argp_child children[] = {{&cli_common, 0, NULL, 0}, {0}};
 * and its parser sets state->child_inputs[0] to a struct cli_options at ARGP_KEY_INIT. */
struct cli_options {
    bool json; /* --json: one JSON document on stdout, nothing else there */
};
extern const struct argp cli_common;

/* Parses argv for a subcommand without options of its own. Returns an exit code; help and errors are printed. */
int cli_parse_common(const char *doc, int argc, char **argv, struct cli_options *options);

/* Prints a document and drops the caller's reference to it. NULL (out of memory while it was built) is a failure. */
int cli_print_json(json_t *doc);

#endif
