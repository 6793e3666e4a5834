/* What the subcommands of `reprise` share: the form of a subcommand, and output as text or as JSON.
 * A subcommand is one file cmd_NAME.c; main.c finds it by its name. Nothing here is part of the library. */
#ifndef REPRISE_CLI_H
#define REPRISE_CLI_H

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

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

/* The options that every subcommand has: the first member of the struct of its own ones. */
struct cli_options {
    bool json; /* --json: one JSON document on stdout, nothing else there */
};

/* Parses argv by a subcommand's form (options, parser, args_doc, doc) and the common options; the parser finds `options` as its
 * state's input. Returns an exit code; help and errors are printed. */
int cli_parse(const struct argp *form, int argc, char **argv, struct cli_options *options);

/* What the tool writes to stderr goes through a stream that escapes control bytes (main.c): names and texts of others must not move
 * a terminal's cursor. This is the stream behind it, for a progress bar. */
extern FILE *cli_terminal;
/* A name in one line, control bytes as \xNN, cut when too long; valid until the fourth call from here. */
const char *cli_shown(const char *name);

/* All bytes of a regular file of at most `limit` bytes, or of standard input for "-", with a NUL behind them, to be freed. NULL: what
 * was wrong is in why. Never waits for a pipe that has a name. */
char *cli_read(const char *path, size_t limit, size_t *bytes, char *why, size_t why_bytes);

/* Is it a name that rp_compile takes? Else says so and lists them; the exit code is CLI_USAGE then. */
bool cli_is_backend(const char *command, const char *name);

/* Says that the name is none of a model, and which there are. */
void cli_no_model(const char *command, const char *name);

/* Prints a document and drops the caller's reference to it. NULL (out of memory while it was built) is a failure. */
int cli_print_json(json_t *doc);

#endif
