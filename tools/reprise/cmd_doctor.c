/* `reprise doctor`: what the library found on this machine, and why something is absent. The text is rp_doctor's; as JSON
 * a subject is a key and its lines are a list. */
#include "cli.h"

#include <reprise.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cuts the text into lines. */
static json_t *report_to_json(char *text) {
    json_t *doc = json_object();
    json_t *lines = NULL;
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        if (strncmp(line, "  ", 2)) {
            char *colon = strstr(line, ": ");
            lines = json_array();
            if (colon) *colon = 0;
            json_object_set_new(doc, line, lines);
            line = colon ? colon + 2 : line + strlen(line);
        } else {
            line += 2;
        }
        if (*line) json_array_append_new(lines, json_string(line));
    }
    return doc;
}

/* Lines for engines of others, behind the library's own text. */
static void add_engines(char *text, size_t bytes) {
    for (size_t i = 0; i < rp_backend_count(); i++) {
        rp_backend_info info = {.struct_size = sizeof info};
        const char *name = rp_backend_name(i);
        const size_t at = strlen(text);
        if (rp_backend_info_get(name, &info) != RP_OK || (info.available && !*info.where)) continue;
        snprintf(text + at, bytes - at, "backend %s: %s%s%s\n", name,
                 info.available ? info.version : "not here: ", info.available ? ", " : "",
                 cli_shown(info.available ? info.where : info.why));
    }
}

static int run(int argc, char **argv) {
    struct cli_options options = {0};
    static const struct argp argp = {
        .doc = "Says what the library found on this machine: devices, CUDA libraries and where they were "
               "looked for, vector kernels, threads, compiler, cache."};
    int code = cli_parse(&argp, argc, argv, &options);
    if (code) return code;
    size_t length = rp_doctor(NULL, 0);
    enum { MORE = 16384 }; /* a second look may find more; and engines */
    char *text = malloc(length + MORE);
    if (!text || !length) {
        fputs("reprise doctor: out of memory\n", stderr);
        free(text);
        return CLI_FAILED;
    }
    rp_doctor(text, length + 4096);
    add_engines(text, length + MORE);
    if (options.json) {
        code = cli_print_json(report_to_json(text));
    } else {
        fputs(text, stdout);
    }
    free(text);
    return code;
}

const struct cli_command cli_cmd_doctor = {"doctor", "say what was found on this machine, and why something is absent",
                                           run};
