/* `reprise backends`: the names that rp_compile takes. */
#include "cli.h"

#include <reprise.h>
#include <stdio.h>

static int run(int argc, char **argv) {
    struct cli_options options = {0};
    static const struct argp argp = {.doc = "Lists the backends that a function can be compiled with."};
    int code = cli_parse(&argp, argc, argv, &options);
    if (code) return code;
    json_t *list = options.json ? json_array() : NULL;
    for (size_t i = 0; i < rp_backend_count(); i++) {
        if (list) {
            json_array_append_new(list, json_string(rp_backend_name(i)));
        } else {
            printf("%s\n", rp_backend_name(i));
        }
    }
    return list ? cli_print_json(list) : CLI_OK;
}

const struct cli_command cli_cmd_backends = {"backends", "list the backends of the compiler", run};
