/* A model of models/ as the subcommands use it: its forward function and whole training step, with arguments to call
   them with. */
#ifndef REPRISE_PROGRAM_H
#define REPRISE_PROGRAM_H

#include <reprise.h>
#include <reprise_nn.h>

#include "model.h"

/* Zero fields are the defaults. */
struct cli_program_options {
    int64_t batch;       /* of the model's kind */
    int64_t length;      /* of its texts: of the model's kind */
    rp_dtype dtype;      /* float32 */
    double rate;         /* of Adam: of the model's kind */
    uint64_t seed;       /* 1: of weights and arguments */
    const char *weights; /* a file that rp_load reads; random ones */
    const char *prefix;  /* of names in that file */
};

/* What the step gets as ctx, in full: it is compared at every call of a compiled function, so nothing but `forward`
   changes in between. */
struct cli_program {
    struct model model;
    rp_tensor *in[MODEL_MAX_INPUTS + 1]; /* arguments, and the target behind them; retained */
    rp_tensor *const *params; /* the module's; of a function without parameters its arguments, which are trained then */
    size_t n_params;
    rp_optimizer *optimizer; /* Adam; NULL where nothing is trained */
    rp_compiled *forward;    /* NULL: the step calls the body itself; else what rp_call runs in its place */
};

/* Zeroes *p first. On failure nothing is held, and the sticky error says why. */
rp_status cli_program_make(struct cli_program *p, const struct model_kind *kind,
                           const struct cli_program_options *options);
void cli_program_release(struct cli_program *p);
/* Other arguments of the same form, at random; MODEL_MAX_INPUTS + 1 places. */
rp_status cli_program_inputs(const struct cli_program *p, const struct cli_program_options *options, rp_tensor **in);

rp_fn cli_program_forward(
    struct cli_program *p); /* in: the first cli_program_n_in(p, false) of p->in; out: the result */
/* Forward, loss, backward, optimizer, gradients dropped. in: the first cli_program_n_in(p, true) of p->in; out: the
   loss, detached. */
rp_fn cli_program_step(struct cli_program *p);
size_t cli_program_n_in(const struct cli_program *p, bool step);
bool cli_program_trains(const struct model_kind *kind);
/* rp_compile_module, or rp_compile where there is no module. */
rp_compiled *cli_program_compile(struct cli_program *p, rp_fn fn, const rp_compile_options *options);

#endif
