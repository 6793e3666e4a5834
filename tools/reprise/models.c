/* The models of models.h. Only ops and layers that a user would write; nothing here measures or prints. */
#include "models.h"

#include <string.h>

static rp_status status_now(void) { return rp_failed() ? rp_error_status() : RP_OK; }

/* A parameter of the model; its tensor is retained. NULL-safe through the error tensor. */
static void add_param(struct cli_model *m, rp_tensor *t) {
    rp_set_requires_grad(t, true);
    m->params[m->n_params++] = rp_retain(t);
}

static rp_status add_linear(struct cli_model *m, int64_t in, int64_t out) {
    rp_linear_layer layer;
    rp_status status = rp_linear_layer_init(&layer, in, out, true, RP_F32);
    if (status) return status;
    m->params[m->n_params++] = layer.weight; /* the layer's references move to the model */
    m->params[m->n_params++] = layer.bias;
    return RP_OK;
}

static rp_status add_adam(struct cli_model *m, double lr) {
    if (rp_failed()) return rp_error_status();
    m->optimizer = rp_adam(m->params, m->n_params, lr, NULL);
    return status_now();
}

/* ---------------------------------------------------------------- sin(2x) */

static void trig_forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sin(rp_mul_scalar(in[0], rp_i64(2))); /* (5) */
}

static rp_tensor *trig_loss(rp_tensor *result, rp_tensor *const *in) {
    (void)in;
    return rp_sum(rp_add_scalar(result, rp_i64(-1)));
}

static rp_status trig_make(struct cli_model *m) {
    add_param(m, rp_randn(RP_DIMS(5)));
    return add_adam(m, 0.1);
}

static rp_status trig_inputs(const struct cli_model *m, rp_tensor **in) {
    in[0] = rp_clone(rp_detach(m->params[0])); /* (5) */
    return status_now();
}

static const struct cli_model_kind trig = {
    .name = "trig",
    .summary = "sin(2x) of 5 numbers; trained on sum(y - 1)",
    .trainable = true,
    .make = trig_make,
    .inputs = trig_inputs,
    .n_inputs = 1,
    .n_step_inputs = 0,
    .forward = trig_forward,
    .loss = trig_loss,
};

/* ---------------------------------------------------------------- Linear(10, 64), ReLU, Linear(64, 10) */

static void mlp_forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct cli_model *m = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_relu(rp_linear(in[0], m->params[0], m->params[1])); /* (64, 64) */
    out[0] = rp_linear(h, m->params[2], m->params[3]);                    /* (64, 10) */
}

static rp_tensor *class_loss(rp_tensor *result, rp_tensor *const *in) { return rp_cross_entropy(result, in[1]); }

static rp_status mlp_make(struct cli_model *m) {
    rp_status status = add_linear(m, 10, 64);
    if (!status) status = add_linear(m, 64, 10);
    return status ? status : add_adam(m, 1e-3);
}

static rp_status mlp_inputs(const struct cli_model *m, rp_tensor **in) {
    (void)m;
    in[0] = rp_randn(RP_DIMS(64, 10));
    in[1] = rp_randint(0, 10, RP_DIMS(64));
    return status_now();
}

static const struct cli_model_kind mlp = {
    .name = "mlp",
    .summary = "Linear(10, 64), ReLU, Linear(64, 10), batch 64; trained with Adam on cross-entropy",
    .trainable = true,
    .make = mlp_make,
    .inputs = mlp_inputs,
    .n_inputs = 1,
    .n_step_inputs = 2,
    .forward = mlp_forward,
    .loss = class_loss,
};

/* ---------------------------------------------------------------- gelu, layer norm, softmax */

static void rows_forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct cli_model *m = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_layer_norm(rp_gelu(in[0]), RP_DIMS(256), m->params[0], m->params[1], 1e-5); /* (512, 256) */
    out[0] = rp_softmax(h, -1);
}

static rp_status rows_make(struct cli_model *m) {
    m->params[m->n_params++] = rp_retain(rp_ones(RP_DIMS(256)));
    m->params[m->n_params++] = rp_retain(rp_zeros(RP_DIMS(256)));
    return status_now();
}

static rp_status rows_inputs(const struct cli_model *m, rp_tensor **in) {
    (void)m;
    in[0] = rp_randn(RP_DIMS(512, 256));
    return status_now();
}

static const struct cli_model_kind rows = {
    .name = "rows",
    .summary = "softmax(layer_norm(gelu(x))) of 512 x 256 numbers",
    .make = rows_make,
    .inputs = rows_inputs,
    .n_inputs = 1,
    .forward = rows_forward,
};

/* ---------------------------------------------------------------- character-level language model */

static void text_forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct cli_model *m = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *const *p = m->params;
    rp_tensor *e = rp_embedding(p[0], in[0]);                                     /* (B, context, width) */
    rp_tensor *x = rp_reshape(e, RP_DIMS(-1, CLI_TEXT_CONTEXT * CLI_TEXT_WIDTH)); /* (B, context * width) */
    rp_tensor *h = rp_relu(rp_linear(x, p[1], p[2]));                             /* (B, hidden) */
    if (m->dropout > 0) h = rp_dropout(h, m->dropout, true);
    h = rp_relu(rp_linear(h, p[3], p[4])); /* (B, hidden) */
    if (m->dropout > 0) h = rp_dropout(h, m->dropout, true);
    out[0] = rp_linear(h, p[5], p[6]); /* (B, vocabulary) */
}

static rp_status text_fill(struct cli_model *m, int64_t vocabulary, double dropout) {
    m->dropout = dropout;
    add_param(m, rp_randn(RP_DIMS(vocabulary, CLI_TEXT_WIDTH)));
    rp_status status = status_now();
    if (!status) status = add_linear(m, CLI_TEXT_CONTEXT * CLI_TEXT_WIDTH, CLI_TEXT_HIDDEN);
    if (!status) status = add_linear(m, CLI_TEXT_HIDDEN, CLI_TEXT_HIDDEN);
    if (!status) status = add_linear(m, CLI_TEXT_HIDDEN, vocabulary);
    return status ? status : add_adam(m, CLI_TEXT_RATE);
}

static rp_status text_make(struct cli_model *m) { return text_fill(m, 96, 0.1); }

static rp_status text_inputs(const struct cli_model *m, rp_tensor **in) {
    (void)m;
    in[0] = rp_randint(0, 96, RP_DIMS(64, CLI_TEXT_CONTEXT));
    in[1] = rp_randint(0, 96, RP_DIMS(64));
    return status_now();
}

static const struct cli_model_kind text = {
    .name = "text",
    .summary = "next character from a context: embedding, three linear layers, dropout, cross-entropy, Adam",
    .trainable = true,
    .make = text_make,
    .inputs = text_inputs,
    .n_inputs = 1,
    .n_step_inputs = 2,
    .forward = text_forward,
    .loss = class_loss,
};

/* ---------------------------------------------------------------- all of them */

const struct cli_model_kind *const cli_models[] = {&trig, &mlp, &rows, &text, NULL};

const struct cli_model_kind *cli_model_find(const char *name) {
    for (const struct cli_model_kind *const *k = cli_models; *k; k++) {
        if (!strcmp((*k)->name, name)) return *k;
    }
    return NULL;
}

/* The bytes of a model are compared by compiled functions, so padding must be equal too. */
static rp_status made(struct cli_model *m, rp_scope scope, rp_status status) {
    rp_status ended = rp_scope_end(scope, NULL, 0);
    if (!status) status = ended;
    if (status) cli_model_release(m);
    return status;
}

rp_status cli_model_make(struct cli_model *m, const struct cli_model_kind *kind) {
    memset(m, 0, sizeof *m);
    m->kind = kind;
    rp_scope scope = rp_scope_begin();
    rp_status status = rp_manual_seed(1);
    return made(m, scope, status ? status : kind->make(m));
}

rp_status cli_text_model_make(struct cli_model *m, int64_t vocabulary, double dropout) {
    memset(m, 0, sizeof *m);
    m->kind = &text;
    rp_scope scope = rp_scope_begin();
    rp_status status = rp_manual_seed(1);
    return made(m, scope, status ? status : text_fill(m, vocabulary, dropout));
}

void cli_model_release(struct cli_model *m) {
    rp_optimizer_release(m->optimizer);
    for (size_t i = 0; i < m->n_params; i++) {
        rp_release(m->params[i]);
    }
    memset(m, 0, sizeof *m);
}

rp_fn cli_model_forward(struct cli_model *m) { return (rp_fn){m->kind->forward, m, sizeof *m, m->kind->name}; }

static void step_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct cli_model *m = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *const *args = m->kind->n_step_inputs ? in : m->params; /* sin(2x) is trained on x itself */
    rp_tensor *y = NULL;
    if (m->forward) {
        rp_call(m->forward, args, m->kind->n_inputs, &y, 1);
    } else {
        m->kind->forward(m, args, m->kind->n_inputs, &y, 1);
    }
    rp_tensor *loss = m->kind->loss(y, in);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(m->optimizer);
    rp_optimizer_zero_grad(m->optimizer, true);
    out[0] = rp_detach(loss);
}

rp_fn cli_model_step(struct cli_model *m) { return (rp_fn){step_body, m, sizeof *m, m->kind->name}; }
