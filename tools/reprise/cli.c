/* Shared pieces of the subcommands: common options, JSON output. Called by cmd_*.c. */
#include "cli.h"
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <reprise.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

FILE *cli_terminal;

/* Of the subcommand that is being parsed: argp has a place for it only where each parser hands it on. */
static struct cli_options *common;

static error_t parse_common(int key, char *arg, struct argp_state *state) {
    (void)arg;
    if (key == 'h') argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP);
    if (key != 'j') return ARGP_ERR_UNKNOWN;
    common->json = true;
    return 0;
}

int cli_parse(const struct argp *form, int argc, char **argv, struct cli_options *options) {
    static const struct argp_option common_options[] = {
        {"json", 'j', NULL, 0, "Print one JSON document instead of text", 0},
        {NULL, 'h', NULL, OPTION_HIDDEN, NULL, 0},
        {0},
    };
    static const struct argp shared = {.options = common_options, .parser = parse_common};
    static const struct argp_child children[] = {{&shared, 0, NULL, 0}, {0}};
    struct argp whole = *form;
    whole.children = children;
    common = options;
    return argp_parse(&whole, argc, argv, 0, NULL, options) ? CLI_USAGE : CLI_OK;
}

const char *cli_shown(const char *name) {
    static char text[4][256];
    static unsigned next;
    char *out = text[next++ % 4];
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)name; *p && n + 5 < sizeof text[0]; p++) {
        if (*p < 0x20 || *p == 0x7F)
            n += (size_t)snprintf(out + n, 5, "\\x%02X", *p);
        else
            out[n++] = (char)*p;
    }
    out[n] = 0;
    return out;
}

char *cli_read(const char *path, size_t limit, size_t *bytes, char *why, size_t why_bytes) {
    const bool own = strcmp(path, "-") == 0;
    /* Without O_NONBLOCK a pipe that has a name would be waited for. */
    int fd = own ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st = {0};
    char *data = NULL;
    size_t n = 0;
    if (fd < 0 || (!own && fstat(fd, &st) != 0)) {
        snprintf(why, why_bytes, "%s", strerror(errno));
    } else if (!own && !S_ISREG(st.st_mode)) {
        snprintf(why, why_bytes, "%s",
                 S_ISDIR(st.st_mode)    ? "it is a folder"
                 : S_ISFIFO(st.st_mode) ? "it is a pipe; - reads standard input"
                                        : "it is no regular file");
    } else {
        size_t room = own ? 1 << 16 : (size_t)st.st_size < limit ? (size_t)st.st_size + 1 : limit + 1;
        ssize_t got = 1;
        for (bool ok = true; ok && got > 0 && n <= limit;) {
            char *more = !data || n + 1 >= room ? realloc(data, (room = data ? 2 * room : room) + 1) : data;
            ok = more != NULL;
            if (!ok) {
                snprintf(why, why_bytes, "out of memory");
                break;
            }
            data = more;
            got = read(fd, data + n, room - n);
            if (got < 0 && errno == EINTR)
                got = 1;
            else if (got < 0)
                snprintf(why, why_bytes, "%s", strerror(errno));
            else
                n += (size_t)got;
        }
        if (n > limit) snprintf(why, why_bytes, "it is larger than %zu bytes", limit);
        if (n > limit || got != 0) {
            free(data);
            data = NULL;
        } else {
            data[n] = 0;
        }
    }
    if (fd >= 0 && !own) close(fd);
    *bytes = n;
    return data;
}

static void nothing(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in, (void)out, (void)n_out;
}

bool cli_is_backend(const char *command, const char *name) {
    const rp_compile_options options = {.struct_size = sizeof options, .backend = name};
    rp_compiled *f = rp_compile((rp_fn){nothing, NULL, 0, "nothing"}, &options);
    const bool known = !rp_failed();
    if (!known) fprintf(stderr, "reprise %s: --backend: %s\n", command, rp_error_message());
    rp_error_take();
    rp_compiled_release(f);
    return known;
}

void cli_no_model(const char *command, const char *name) {
    char names[1024];
    model_names(names, sizeof names);
    fprintf(stderr, "reprise %s: no model '%s'; models are %s; a file is named with a dot or slash\n", command,
            cli_shown(name), names);
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
