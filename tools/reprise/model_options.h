/* What `run`, `bench` and `train` take for a model of the table: its options on the command line. */
#ifndef REPRISE_MODEL_OPTIONS_H
#define REPRISE_MODEL_OPTIONS_H

#include "cli.h"
#include "program.h"

struct cli_model_options {
    struct cli_program_options program;
    const char *device; /* NULL: a GPU where there is one */
    bool given;         /* any of them */
};

/* Rows of an argp table, keys from CLI_MODEL_KEYS on. */
enum {
    CLI_MODEL_KEYS = 0x200,
    CLI_KEY_WEIGHTS = CLI_MODEL_KEYS,
    CLI_KEY_PREFIX,
    CLI_KEY_DTYPE,
    CLI_KEY_BATCH,
    CLI_KEY_LENGTH,
    CLI_KEY_DEVICE
};
#define CLI_MODEL_OPTIONS                                                                                                         \
    {"weights",                                                                                                                   \
     CLI_KEY_WEIGHTS,                                                                                                             \
     "FILE",                                                                                                                      \
     0,                                                                                                                           \
     "Of a model: its weights (.safetensors, or an index of several); else random",                                               \
     1},                                                                                                                          \
        {"prefix", CLI_KEY_PREFIX, "TEXT", 0, "What the names in that file begin with, to be left out", 1},                       \
        {"dtype",                                                                                                                 \
         CLI_KEY_DTYPE,                                                                                                           \
         "f32|tf32|f64|f16|bf16",                                                                                                 \
         0,                                                                                                                       \
         "The type of a model's weights and arguments (f32); tf32: f32 whose products and convolutions may round to it on a GPU", \
         1},                                                                                                                      \
        {"batch", CLI_KEY_BATCH, "N", 0, "Rows in a model's arguments", 1},                                                       \
        {"length", CLI_KEY_LENGTH, "N", 0, "Tokens in a model's texts", 1}, {                                                     \
        "device", CLI_KEY_DEVICE, "cpu|cuda", 0, "Where a model computes; a GPU is used where there is one", 1                    \
    }

/* Handles one of these keys; false: it is another. Wrong values end the program as argp does. */
bool cli_model_option(struct cli_model_options *o, int key, char *arg, struct argp_state *state);
/* The device that was asked for becomes the default one. Returns an exit code; what is wrong is printed. */
int cli_model_device(const struct cli_model_options *o, const char *command);
/* Does the kind take these options? Else says why not. */
bool cli_model_fits(const struct cli_model_options *o, const char *command, const struct model_kind *kind);
/* Prints and takes the sticky error of work on a model. Returns CLI_FAILED. */
int cli_model_failed(const char *command, const char *name, rp_status status);

#endif
