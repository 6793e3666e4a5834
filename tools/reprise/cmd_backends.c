/* `reprise backends`: the names that rp_compile takes; of those that are other engines' which version is here, and where, or why not. */
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
        const char *name = rp_backend_name(i);
        rp_backend_info info = {.struct_size = sizeof info};
        if (rp_backend_info_get(name, &info) != RP_OK) return CLI_FAILED;
        const bool own = info.available && !*info.where;
        if (list) {
            json_array_append_new(list,
                                  json_pack("{s:s, s:b, s:s, s:s, s:s}", "name", name, "available", (int)info.available,
                                            "version", info.version, "where", info.where, "why", info.why));
        } else if (own) {
            printf("%s\n", name);
        } else {
            printf("%-12s %s%s%s\n", name, info.available ? info.version : "not here: ", info.available ? ", " : "",
                   cli_shown(info.available ? info.where : info.why));
        }
    }
    return list ? cli_print_json(list) : CLI_OK;
}

const struct cli_command cli_cmd_backends = {"backends", "list the backends of the compiler", run};
