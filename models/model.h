/* The models by name: what makes each, what goes in, and how it is trained. The command-line tool, tests and
 * comparisons with PyTorch share this one table. */
#ifndef MODELS_MODEL_H
#define MODELS_MODEL_H

#include <reprise.h>
#include <reprise_nn.h>

enum { MODEL_MAX_INPUTS = 4, MODEL_MAX_DIMS = 4 };

/* An argument, or the target of a loss. */
struct model_input {
    const char *name;
    int64_t high; /* > 0: random int64 below it; 0: random floats of the model's type; -1: ones of that type */
    int64_t size[MODEL_MAX_DIMS]; /* behind the batch; 0 ends it; MODEL_LENGTH: the tokens of a text */
};
enum { MODEL_LENGTH = -1 };

/* How a result and a target become a number: the mean cross-entropy of classes, the last dim of the result; the sum of
   result - 1, without a target; or not at all, for what is not trained. */
enum model_loss { MODEL_CLASSES, MODEL_SUM, MODEL_UNTRAINED };

struct model_kind {
    const char *name, *summary;
    int64_t batch;  /* the first size of arguments and target, unless another is asked for; 0: there is no such size */
    int64_t length; /* of texts, likewise */
    enum model_loss loss;
    double rate;                                     /* of Adam, that trains it; 0: 1e-3 */
    struct model_input inputs[MODEL_MAX_INPUTS + 1]; /* those of the function; one without a name ends them */
    struct model_input target;
    size_t bytes;        /* of the model's struct; 0: a function without parameters */
    const void *options; /* of init */
    rp_status (*init)(void *model, const void *options);
    void (*release)(void *model);
    rp_body *body; /* one result */
};

/* The last one has no name. */
extern const struct model_kind model_kinds[];
const struct model_kind *model_find(const char *name); /* NULL: none */
size_t model_n_inputs(const struct model_kind *kind);

struct model {
    const struct model_kind *kind;
    void *self;        /* its struct: struct resnet, ...; NULL without parameters */
    rp_module *module; /* NULL without parameters */
};

/* On failure nothing is held, and the status says why. */
rp_status model_init(struct model *m, const struct model_kind *kind);
void model_release(struct model *m);
/* What messages about an unknown name say: all names, in a line. Returns the bytes that the whole needs. */
size_t model_names(char *text, size_t bytes);
rp_fn model_forward(const struct model *m); /* for rp_compile_module, or rp_compile without a module */
/* Random arguments from the default generator and, where there is one, the target behind them; batch and length 0: the kind's
   own; floats are of `dtype`. in: MODEL_MAX_INPUTS + 1. */
rp_status model_inputs(const struct model *m, int64_t batch, int64_t length, rp_dtype dtype, rp_tensor **in);
/* in: as model_inputs gives them. A 0-d tensor. */
rp_tensor *model_loss(const struct model *m, rp_tensor *result, rp_tensor *const *in);

#endif
