/* `reprise`: finds the subcommand and hands it the rest of the command line. Owns --help and --version only. */
#include "cli.h"

#include <errno.h>
#include <reprise.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_command *const commands[] = {
#define CLI_COMMAND(name) &cli_cmd_##name,
#include "cli_commands.inc"
#undef CLI_COMMAND
    NULL,
};

static void print_version(FILE *out, struct argp_state *state) {
    (void)state;
    fprintf(out, "reprise %s\n", rp_version_string());
}

/* The list of subcommands, behind the options in --help. argp frees what is returned. */
static char *list_commands(int key, const char *text, void *input) {
    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC) return (char *)(uintptr_t)text;
    char *list = NULL;
    size_t len;
    FILE *out = open_memstream(&list, &len);
    if (!out) return NULL;
    fputs("Commands:\n", out);
    for (const struct cli_command *const *c = commands; *c; c++) {
        fprintf(out, "  %-10s %s\n", (*c)->name, (*c)->summary);
    }
    fputs("\n`reprise COMMAND --help` explains one of them.", out);
    if (fclose(out)) {
        free(list);
        return NULL;
    }
    return list;
}

struct choice {
    int index; /* of the command's name in argv */
};

static error_t parse_main(int key, char *arg, struct argp_state *state) {
    struct choice *choice = state->input;
    (void)arg;
    switch (key) {
    case ARGP_KEY_ARG:
        choice->index = state->next - 1;
        state->next = state->argc; /* the rest is the subcommand's */
        return 0;
    case ARGP_KEY_NO_ARGS: argp_usage(state); return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* However the tool ends: what could not be written did not reach its reader, so the command failed. */
static void check_output(void) {
    errno = 0;
    bool failed = ferror(stdout) != 0;
    if (!fclose(stdout) && !failed) return;
    if (errno)
        fprintf(stderr, "reprise: cannot write the output: %s\n", strerror(errno));
    else
        fputs("reprise: cannot write the output\n", stderr);
    _Exit(CLI_FAILED);
}

int main(int argc, char **argv) {
    if (atexit(check_output)) return CLI_FAILED;
    argp_program_version_hook = print_version;
    argp_err_exit_status = CLI_USAGE;
    static const struct argp argp = {
        .parser = parse_main,
        .args_doc = "COMMAND [ARGUMENT...]",
        .doc = "Records tensor programs and plays them back.\v",
        .help_filter = list_commands,
    };
    struct choice choice = {0};
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &choice) || !choice.index) return CLI_USAGE;

    const char *name = argv[choice.index];
    for (const struct cli_command *const *c = commands; *c; c++) {
        if (strcmp(name, (*c)->name)) continue;
        char title[64];
        snprintf(title, sizeof title, "reprise %s", name);
        argv[choice.index] = title; /* what help and errors of the subcommand call it */
        return (*c)->run(argc - choice.index, argv + choice.index);
    }
    fprintf(stderr, "reprise: no command '%s'; `reprise --help` lists them\n", name);
    return CLI_USAGE;
}
