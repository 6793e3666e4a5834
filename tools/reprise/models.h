/* The small models that demo, dump, explain and bench share: each is made on the thread's default device with a fixed seed,
 * as a function to record, the function of a whole training step around it, and tensors to call them with. */
#ifndef REPRISE_MODELS_H
#define REPRISE_MODELS_H

#include <reprise.h>
#include <reprise_nn.h>

enum { CLI_MAX_PARAMS = 8, CLI_MAX_INPUTS = 2 };

/* What bodies get as ctx, in full: it is compared at every call of a compiled function, so it never changes in between. */
struct cli_model {
    rp_tensor *params[CLI_MAX_PARAMS]; /* retained; the model's order */
    size_t n_params;
    rp_optimizer *optimizer; /* NULL for functions that are not trained */
    rp_compiled *forward;    /* NULL: the step calls the body itself; else what rp_call runs in its place */
    double dropout;          /* probability, 0 outside training */
    const struct cli_model_kind *kind;
};

struct cli_model_kind {
    const char *name, *summary;
    bool trainable;
    rp_status (*make)(struct cli_model *m);                         /* parameters, and an optimizer if trainable */
    rp_status (*inputs)(const struct cli_model *m, rp_tensor **in); /* fills max(n_inputs, n_step_inputs) entries */
    size_t n_inputs;                                                /* of the forward function */
    size_t n_step_inputs; /* of the step: the forward's, then targets; 0: the parameter itself is the argument */
    rp_body *forward;     /* one result */
    rp_tensor *(*loss)(rp_tensor *result, rp_tensor *const *in); /* in: those of the step */
};

/* NULL at the end. */
extern const struct cli_model_kind *const cli_models[];
const struct cli_model_kind *cli_model_find(const char *name); /* NULL: none */

/* Zeroes *m first. On failure nothing is held, and the sticky error says why. */
rp_status cli_model_make(struct cli_model *m, const struct cli_model_kind *kind);
void cli_model_release(struct cli_model *m);
rp_fn cli_model_forward(struct cli_model *m); /* in: n_inputs; out: the result */
/* Forward, loss, backward, optimizer, gradients dropped. in: n_step_inputs; out: the loss, detached. */
rp_fn cli_model_step(struct cli_model *m);

/* The character-level language model is made for a vocabulary. in: (B, context) codes i64; step: and (B) next codes. */
enum { CLI_TEXT_CONTEXT = 24, CLI_TEXT_WIDTH = 16, CLI_TEXT_HIDDEN = 256 };
#define CLI_TEXT_RATE 1.5e-3
rp_status cli_text_model_make(struct cli_model *m, int64_t vocabulary, double dropout);

#endif
