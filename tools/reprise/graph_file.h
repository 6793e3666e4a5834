/* Graphs in text form (docs/ir.md) as functions: read from a file, given inputs, compiled by a backend. `run`, `bench`,
 * `explain` and `dump` share it. */
#ifndef REPRISE_GRAPH_FILE_H
#define REPRISE_GRAPH_FILE_H

#include "cli.h"

#include <reprise_io.h>

enum { CLI_GRAPH_BYTES = 64 << 20, CLI_MAX_GRAPH_INPUTS = 2048 };

/* What --input says of one argument; what it leaves out is the graph's. */
struct cli_input {
    const char *file;   /* .npy; NULL: none */
    const char *values; /* after "=": as many numbers as elements, or one for all; NULL: random */
    rp_dtype dtype;     /* RP_DTYPE_NONE: not given */
    bool sized;
    int64_t size[RP_MAX_DIMS];
    size_t ndim;
};

struct cli_graph {
    const char *path;
    char *text;
    size_t bytes;
    size_t n_in, n_out;
    struct cli_input inputs[CLI_MAX_GRAPH_INPUTS];
    size_t n_inputs; /* that were given, for the first arguments */
    uint64_t seed;
    bool uncalled; /* it is read alone, whatever it takes and gives */
};

/* Is the argument of a command a file, by a dot or slash or as -, rather than the name of a model or row? */
bool cli_is_graph(const char *name);
/* What --input says of the next argument. TYPE[SIZE,...], @FILE.npy, =VALUE,...: at least one of them, in this order; _
 * is all of the graph. false: what was wrong is in why. */
bool cli_input_add(struct cli_graph *g, const char *text, char *why, size_t why_bytes);

/* Reads and checks. Returns an exit code; what was wrong is printed in the name of the command. */
int cli_graph_load(struct cli_graph *g, const char *command, const char *path);
void cli_graph_free(struct cli_graph *g);

/* The graph as a function of a backend, with generators of its own; the caller releases both. NULL and the sticky
   error. */
rp_compiled *cli_graph_compile(const struct cli_graph *g, const char *backend, rp_ir **ir);
/* Inputs for one call, the same at every call of this function: seeds the generators first. What was wrong is printed,
   or is the sticky error. */
rp_status cli_graph_inputs(const struct cli_graph *g, const char *command, rp_tensor **in);
/* What was given for argument k, of the type and size of `like` where it says none; NULL: nothing was given, or, with a
 * text in why, it is wrong. */
rp_tensor *cli_given_input(const struct cli_graph *g, size_t k, rp_tensor *like, char *why, size_t why_bytes);
/* Prints and takes the sticky error, if there is one. Returns CLI_FAILED. */
int cli_graph_failed(const struct cli_graph *g, const char *command, rp_status status);

#endif
