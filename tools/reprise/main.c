/* `reprise`: finds the subcommand and hands it the rest of the command line. Owns help, --version and what stderr is. */
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

/* ---------------------------------------------------------------- what goes to a terminal */

/* Control bytes, and C1 in UTF-8, as \xNN; lines and tabs pass. */
static ssize_t write_escaped(void *cookie, const char *data, size_t bytes) {
    FILE *out = cookie;
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)data[i], next = i + 1 < bytes ? (unsigned char)data[i + 1] : 0;
        const bool c1 = c == 0xC2 && next >= 0x80 && next < 0xA0;
        if ((c >= 0x20 && c != 0x7F && !c1) || c == '\n' || c == '\t')
            putc(c, out);
        else
            fprintf(out, "\\x%02X", c);
    }
    return fflush(out) || ferror(out) ? -1 : (ssize_t)bytes;
}

static void escape_errors(void) {
    cli_terminal = stderr;
    FILE *escaped = fopencookie(stderr, "w", (cookie_io_functions_t){.write = write_escaped});
    if (!escaped) return;
    setvbuf(escaped, NULL, _IOLBF, BUFSIZ);
    stderr = escaped;
}

/* ---------------------------------------------------------------- the command line */

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
    fprintf(out, "  %-10s %s\n", "help", "explain a command: reprise help [COMMAND]");
    fputs("\n`reprise help COMMAND` explains one of them; reprise(1) is the manual.", out);
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
    case 'h': argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP); return 0;
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

static int run_command(const char *name, int argc, char **argv) {
    for (const struct cli_command *const *c = commands; *c; c++) {
        if (strcmp(name, (*c)->name)) continue;
        char title[64];
        snprintf(title, sizeof title, "reprise %s", (*c)->name);
        argv[0] = title; /* what help and errors of the subcommand call it */
        return (*c)->run(argc, argv);
    }
    fprintf(stderr, "reprise: no command '%s'; `reprise --help` lists them\n", cli_shown(name));
    return CLI_USAGE;
}

int main(int argc, char **argv) {
    if (atexit(check_output)) return CLI_FAILED;
    escape_errors();
    argp_program_version_hook = print_version;
    argp_err_exit_status = CLI_USAGE;
    static const struct argp_option options[] = {{NULL, 'h', NULL, OPTION_HIDDEN, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse_main,
        .args_doc = "COMMAND [ARGUMENT...]",
        .doc = "Records tensor programs and plays them back.\v",
        .help_filter = list_commands,
    };
    struct choice choice = {0};
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &choice) || !choice.index) return CLI_USAGE;

    const char *name = argv[choice.index];
    if (strcmp(name, "help")) return run_command(name, argc - choice.index, argv + choice.index);
    const char *of = choice.index + 1 < argc ? argv[choice.index + 1] : "--help";
    if (choice.index + 2 < argc) {
        fputs("reprise help: one command at a time\n", stderr);
        return CLI_USAGE;
    }
    char *help[] = {"reprise", "--help", NULL};
    if (of[0] == '-' || !strcmp(of, "help")) {
        if (strcmp(of, "--help") && strcmp(of, "-h") && strcmp(of, "help")) {
            fprintf(stderr, "reprise help: '%s' is no command\n", cli_shown(of));
            return CLI_USAGE;
        }
        return argp_parse(&argp, 2, help, ARGP_IN_ORDER, NULL, &choice) ? CLI_USAGE : CLI_OK;
    }
    return run_command(of, 2, help);
}
