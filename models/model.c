/* See model.h. */
#include "model.h"

#include "bert.h"
#include "chars.h"
#include "cnn.h"
#include "functions.h"
#include "gpt2.h"
#include "llama.h"
#include "lstm.h"
#include "mlp.h"
#include "resnet.h"
#include "rnn.h"
#include "vit.h"

#include <reprise_ops.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- the table */

/* init and release as functions of any struct. The module is the struct's first member. */
#define ADAPT(model)                                                                                                   \
    static rp_status model##_make(void *self, const void *options) { return model##_init(self, options); }             \
    static void model##_drop(void *self) { model##_release(self); }
ADAPT(mlp)
ADAPT(cnn)
ADAPT(chars)
ADAPT(rnn)
ADAPT(lstm)
ADAPT(resnet)
ADAPT(vit)
ADAPT(bert)
ADAPT(gpt2)
ADAPT(llama)
#undef ADAPT

#define MAKES(model, ...)                                                                                              \
    .bytes = sizeof(struct model), .options = &(const struct model##_options){__VA_ARGS__}, .init = model##_make,      \
    .release = model##_drop, .body = model##_body

#define IMAGES(...) .inputs = {{"images", 0, {__VA_ARGS__}}}
#define TOKENS(high, n) .length = n, .inputs = {{"ids", high, {MODEL_LENGTH}}}
/* Token types, and a mask with 1 for every token. */
#define TEXTS(high, n)                                                                                                 \
    .length = n, .inputs = {{"ids", high, {MODEL_LENGTH}}, {"types", 2, {MODEL_LENGTH}}, {"mask", -1, {MODEL_LENGTH}}}
#define CLASSES(n) .target = {"classes", n, {0}}
#define NEXT(high) .target = {"tokens", high, {MODEL_LENGTH}}
#define RESNET(model, text)                                                                                            \
    { .name = model, .summary = text, .batch = 1, IMAGES(3, 224, 224), CLASSES(1000), MAKES(resnet, .depth = model) }

const struct model_kind model_kinds[] = {
    {.name = "simple",
     .summary = "sin(2x) of 5 numbers",
     .loss = MODEL_SUM,
     .rate = 0.1,
     .inputs = {{"x", 0, {5}}},
     .body = simple_body},
    {.name = "trig",
     .summary = "cos(x) + sin(y) of 10000 numbers each",
     .loss = MODEL_SUM,
     .inputs = {{"x", 0, {10000}}, {"y", 0, {10000}}},
     .body = trig_body},
    {.name = "rows",
     .summary = "softmax(layer_norm(gelu(x))) of 512 x 256 numbers",
     .loss = MODEL_UNTRAINED,
     .inputs = {{"x", 0, {512, 256}}},
     .body = rows_body},
    {.name = "chars",
     .summary = "next character from 24: embedding, three linear layers, dropout",
     .batch = 64,
     .rate = 1.5e-3,
     .inputs = {{"ids", 96, {24}}},
     CLASSES(96),
     MAKES(chars, 0)},
    {.name = "mlp",
     .summary = "Linear(10, 64), ReLU, Linear(64, 10)",
     .batch = 64,
     IMAGES(10),
     CLASSES(10),
     MAKES(mlp, 0)},
    {.name = "cnn",
     .summary = "two convolutions with pools, for digits of 28 x 28",
     .batch = 1,
     IMAGES(1, 28, 28),
     CLASSES(10),
     MAKES(cnn, 0)},
    {.name = "rnn",
     .summary = "RNN(64, 32) over 10 steps, Linear(32, 10)",
     .inputs = {{"x", 0, {10, 64}}},
     CLASSES(10),
     MAKES(rnn, 0)},
    {.name = "lstm",
     .summary = "a classifier of texts: two LSTM layers over 32 tokens",
     .batch = 8,
     TOKENS(10000, 32),
     CLASSES(2),
     MAKES(lstm, 0)},
    RESNET("resnet18", "ResNet-18"),
    RESNET("resnet34", "ResNet-34"),
    RESNET("resnet50", "ResNet-50"),
    RESNET("resnet101", "ResNet-101"),
    RESNET("resnet152", "ResNet-152"),
    RESNET("resnext50_32x4d", "ResNeXt-50, 32 groups of width 4"),
    RESNET("resnext101_32x8d", "ResNeXt-101, 32 groups of width 8"),
    {.name = "vit_b_16",
     .summary = "vision transformer, base, patches of 16 x 16; timm's names",
     .batch = 1,
     IMAGES(3, 224, 224),
     CLASSES(1000),
     MAKES(vit, 0)},
    {.name = "bert",
     .summary = "BERT base with its masked-LM head",
     .batch = 1,
     TEXTS(30522, 12),
     NEXT(30522),
     MAKES(bert, .masked_lm = true, .dropout = -1)},
    {.name = "gpt2",
     .summary = "GPT-2 of 124 million parameters",
     .batch = 1,
     TOKENS(50257, 16),
     NEXT(50257),
     MAKES(gpt2, .dropout = -1)},
    {.name = "llama",
     .summary = "a decoder of Llama's form with 135 million parameters",
     .batch = 1,
     TOKENS(49152, 16),
     NEXT(49152),
     MAKES(llama, 0)},

    /* Small ones of the same forms, for tests. */
    {.name = "resnet-tiny",
     .summary = "ResNet-18 of width 8",
     .batch = 2,
     IMAGES(3, 33, 40),
     CLASSES(10),
     MAKES(resnet, .width = 8, .classes = 10)},
    {.name = "resnext-tiny",
     .summary = "ResNeXt-50 of width 16",
     .batch = 2,
     IMAGES(3, 33, 40),
     CLASSES(10),
     MAKES(resnet, .depth = "resnext50_32x4d", .width = 16, .classes = 10)},
    {.name = "lstm-tiny",
     .summary = "an LSTM of width 12",
     .batch = 3,
     TOKENS(50, 7),
     CLASSES(3),
     MAKES(lstm, .vocabulary = 50, .width = 10, .hidden = 12, .classes = 3)},
    {.name = "vit-tiny",
     .summary = "a vision transformer of two layers; timm's names",
     .batch = 2,
     IMAGES(3, 32, 32),
     CLASSES(10),
     MAKES(vit, .side = 32, .patch = 8, .hidden = 48, .layers = 2, .heads = 3, .classes = 10)},
    {.name = "vit-tiny-torchvision",
     .summary = "the same with torchvision's names",
     .batch = 2,
     IMAGES(3, 32, 32),
     CLASSES(10),
     MAKES(vit, .side = 32, .patch = 8, .hidden = 48, .layers = 2, .heads = 3, .classes = 10, .torchvision = true)},
    {.name = "bert-tiny",
     .summary = "BERT of two layers and width 24",
     .batch = 2,
     TEXTS(50, 6),
     NEXT(50),
     MAKES(bert, .vocabulary = 50, .hidden = 24, .layers = 2, .heads = 3, .intermediate = 40, .positions = 16,
           .masked_lm = true, .dropout = -1)},
    {.name = "gpt2-tiny",
     .summary = "GPT-2 of two layers and width 24",
     .batch = 2,
     TOKENS(50, 9),
     NEXT(50),
     MAKES(gpt2, .vocabulary = 50, .hidden = 24, .layers = 2, .heads = 3, .positions = 32, .dropout = -1)},
    {.name = "llama-tiny",
     .summary = "a decoder of Llama's form, two layers, width 32",
     .batch = 2,
     TOKENS(50, 9),
     NEXT(50),
     MAKES(llama, .vocabulary = 50, .hidden = 32, .layers = 2, .heads = 4, .kv_heads = 2, .intermediate = 48,
           .positions = 32, .untied = true)},
    {0},
};

const struct model_kind *model_find(const char *name) {
    for (const struct model_kind *k = model_kinds; k->name; k++)
        if (strcmp(k->name, name) == 0) return k;
    return NULL;
}

size_t model_names(char *text, size_t bytes) {
    size_t n = 0;
    for (const struct model_kind *k = model_kinds; k->name; k++)
        n += (size_t)snprintf(n < bytes ? text + n : NULL, n < bytes ? bytes - n : 0, "%s%s", n ? ", " : "", k->name);
    return n;
}

size_t model_n_inputs(const struct model_kind *kind) {
    size_t n = 0;
    while (kind->inputs[n].name) n++;
    return n;
}

/* ---------------------------------------------------------------- one of them */

rp_status model_init(struct model *m, const struct model_kind *kind) {
    *m = (struct model){.kind = kind};
    if (!kind->bytes) return RP_OK;
    m->self = calloc(1, kind->bytes);
    rp_status status = m->self ? kind->init(m->self, kind->options) : RP_ERROR_OUT_OF_MEMORY;
    if (!status) {
        m->module = *(rp_module **)m->self;
        return RP_OK;
    }
    free(m->self);
    m->self = NULL;
    return status;
}

void model_release(struct model *m) {
    if (m->self) m->kind->release(m->self);
    free(m->self);
    *m = (struct model){0};
}

rp_fn model_forward(const struct model *m) { return (rp_fn){m->kind->body, m->self, 0, m->kind->name}; }

static rp_tensor *random_input(const struct model_input *i, int64_t batch, int64_t length, rp_dtype dtype) {
    int64_t size[MODEL_MAX_DIMS + 1];
    size_t ndim = 0;
    if (batch) size[ndim++] = batch;
    for (size_t d = 0; d < MODEL_MAX_DIMS && i->size[d]; d++)
        size[ndim++] = i->size[d] == MODEL_LENGTH ? length : i->size[d];
    if (i->high > 0) return rp_randint(0, i->high, size, ndim);
    if (i->high < 0) return rp_ones(size, ndim, RP_OPTIONS(rp_ones_options, .dtype = dtype));
    return rp_randn(size, ndim, RP_OPTIONS(rp_randn_options, .dtype = dtype));
}

rp_status model_inputs(const struct model *m, int64_t batch, int64_t length, rp_dtype dtype, rp_tensor **in) {
    const size_t n = model_n_inputs(m->kind);
    if (!batch) batch = m->kind->batch;
    if (!length) length = m->kind->length;
    for (size_t i = 0; i < n; i++) in[i] = random_input(&m->kind->inputs[i], batch, length, dtype);
    in[n] = m->kind->loss == MODEL_CLASSES ? random_input(&m->kind->target, batch, length, dtype) : NULL;
    return rp_failed() ? rp_error_status() : RP_OK;
}

rp_tensor *model_loss(const struct model *m, rp_tensor *result, rp_tensor *const *in) {
    if (m->kind->loss == MODEL_SUM) return rp_sum(rp_add_scalar(result, rp_i64(-1)));
    rp_tensor *target = in[model_n_inputs(m->kind)];
    if (rp_ndim(result) < 3) return rp_cross_entropy(result, target);
    return rp_cross_entropy(rp_flatten(result, 0, -2), rp_flatten(target)); /* of every token */
}
