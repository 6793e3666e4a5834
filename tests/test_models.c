/* The models of models/, small: names of their states, one training program each that runs eagerly, compiled, as
   graphed callables and as a whole step to the same bits, and generation from a cache. Against PyTorch on the same
   weights: tests/conformance. */
/* ctest: timeout=300 cost=30 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "bert.h"
#include "gpt2.h"
#include "llama.h"
#include "model.h"
#include "resnet.h"
#include "support/check.h"
#include "support/in_scope.h"
#include "support/slow.h"
#include "vit.h"

/* ---------------------------------------------------------------- one training program, several ways */

enum way { EAGER, COMPILED, GRAPHED, WHOLE_STEP, WAYS };

struct program {
    struct model model;
    rp_optimizer *opt;
    rp_compiled *f; /* the forward; NULL: the body itself */
};

static void train_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct program *p = ctx;
    (void)n_in, (void)n_out;
    const size_t n = model_n_inputs(p->model.kind);
    rp_fn fn = model_forward(&p->model);
    rp_tensor *y = NULL;
    if (p->f)
        rp_call(p->f, in, n, &y, 1);
    else
        fn.body(fn.ctx, in, n, &y, 1);
    rp_tensor *loss = model_loss(&p->model, y, in);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(p->opt);
    rp_optimizer_zero_grad(p->opt, true);
    out[0] = rp_detach(loss);
}

/* All state, one tensor after the other; returns its bytes. */
static size_t state_of(rp_module *m, char *out, size_t room) {
    size_t at = 0, n;
    const rp_named_tensor *all = rp_module_state(m, &n);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = (size_t)rp_numel(all[i].tensor) * rp_dtype_size(rp_dtype_of(all[i].tensor));
        assert_true(at + bytes <= room);
        OK(rp_to_host(all[i].tensor, out + at, bytes));
        at += bytes;
    }
    return at;
}
static void restore(rp_module *m, const char *from) {
    size_t n;
    const rp_named_tensor *all = rp_module_state(m, &n);
    for (size_t i = 0; i < n; i++) {
        rp_tensor *t = all[i].tensor;
        int64_t size[RP_MAX_DIMS];
        for (size_t d = 0; d < rp_ndim(t); d++) size[d] = rp_size(t, (int64_t)d);
        rp_copy_(rp_detach(t), rp_from_data(from, size, rp_ndim(t), rp_dtype_of(t)));
        from += (size_t)rp_numel(t) * rp_dtype_size(rp_dtype_of(t));
    }
}

enum { ROOM = 16 << 20, STEPS = 4 };
static char results[2][ROOM], start[ROOM];

/* The losses, then all state. Returns the bytes. */
static size_t train(const char *name, enum way way, char *out) {
    struct program p = {0};
    rp_tensor *in[MODEL_MAX_INPUTS + 1];
    size_t at = 0, n_params;
    OK(rp_manual_seed(7));
    OK(model_init(&p.model, model_find(name)));
    OK(model_inputs(&p.model, 0, 0, RP_F32, in));
    const size_t n = model_n_inputs(p.model.kind);
    rp_module *m = p.model.module;
    p.opt = rp_sgd_module(m, 0.01, RP_OPTIONS(rp_sgd_options, .momentum = 0.9));
    if (way == COMPILED)
        p.f = rp_compile_module(m, model_forward(&p.model), RP_OPTIONS(rp_compile_options, .fullgraph = true));
    if (way == GRAPHED) { /* warming up and capturing run the function: buffers are put back */
        rp_tensor *const *params = rp_module_parameters(m, &n_params);
        const rp_graphed_callable one = {model_forward(&p.model), in, n, params, n_params, 1};
        state_of(m, start, sizeof start);
        OK(rp_make_graphed_callables(&one, 1, RP_OPTIONS(rp_graphed_options, .training = true), &p.f));
        restore(m, start);
    }
    rp_fn step = {train_step, &p, sizeof p, "step"};
    rp_compiled *f = way == WHOLE_STEP ? rp_compile_module(m, step, RP_OPTIONS(rp_compile_options, .fullgraph = true))
                                       : rp_plain(step);
    for (int i = 0; i < STEPS; i++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *loss = NULL;
        OK(rp_call(f, in, n + 1, &loss, 1));
        OK(rp_to_host(loss, out + at, 4));
        at += 4;
        OK(rp_scope_end(inner, NULL, 0));
    }
    at += state_of(m, out + at, ROOM - at);
    rp_compiled_release(f);
    rp_compiled_release(p.f);
    rp_optimizer_release(p.opt);
    model_release(&p.model);
    return at;
}

static void equal_ways(const char *name) {
    float first, last;
    size_t n = train(name, EAGER, results[0]);
    memcpy(&first, results[0], 4);
    memcpy(&last, results[0] + 4 * (STEPS - 1), 4);
    assert_true(last < first);
    for (enum way w = COMPILED; w < WAYS; w++) {
        assert_int_equal(train(name, w, results[1]), n);
        for (size_t i = 0; i < n; i++)
            if (results[1][i] != results[0][i]) fail_msg("%s, way %d: byte %zu of %zu differs", name, (int)w, i, n);
    }
}

#define TRAINS(test, name)                                                                                             \
    static void test(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        equal_ways(name);                                                                                              \
    }
TRAINS(mlp_trains, "mlp")
TRAINS(cnn_trains, "cnn")
TRAINS(rnn_trains, "rnn")
TRAINS(lstm_trains, "lstm-tiny")
TRAINS(resnet_trains, "resnet-tiny")
TRAINS(resnext_trains, "resnext-tiny")
TRAINS(vit_trains, "vit-tiny")
TRAINS(bert_trains, "bert-tiny")
TRAINS(gpt2_trains, "gpt2-tiny")
TRAINS(llama_trains, "llama-tiny")

/* Functions without parameters, as the compiler's first example: equal to what the C library computes. */
static void functions_of_numbers(void **state) {
    (void)state;
    struct model m;
    rp_tensor *in[MODEL_MAX_INPUTS + 1];
    OK(model_init(&m, model_find("trig")));
    OK(model_inputs(&m, 0, 0, RP_F64, in));
    rp_compiled *f = rp_compile(model_forward(&m), RP_OPTIONS(rp_compile_options, .fullgraph = true));
    rp_tensor *y = NULL;
    OK(rp_call(f, in, 2, &y, 1));
    static double a[10000], b[10000], c[10000];
    OK(rp_to_host(in[0], a, sizeof a));
    OK(rp_to_host(in[1], b, sizeof b));
    OK(rp_to_host(y, c, sizeof c));
    for (int i = 0; i < 10000; i++) assert_true(fabs(c[i] - (cos(a[i]) + sin(b[i]))) < 1e-15);
    rp_compiled_release(f);
    model_release(&m);
}

/* Every row of the table can be asked for inputs; names are of one row each. */
static void table_is_sound(void **state) {
    (void)state;
    for (const struct model_kind *k = model_kinds; k->name; k++) {
        assert_ptr_equal(model_find(k->name), k);
        assert_non_null(k->summary);
        assert_true(model_n_inputs(k) >= 1 && model_n_inputs(k) <= MODEL_MAX_INPUTS);
        assert_true((k->bytes == 0) == (k->init == NULL) && k->body != NULL);
        assert_true(k->loss != MODEL_CLASSES || k->target.high > 0);
    }
    assert_null(model_find("resnet19"));
}

/* ---------------------------------------------------------------- ResNet */

static void names_of_torchvision(void **state) {
    (void)state;
    static const struct {
        const char *depth;
        size_t tensors;
        int64_t parameters;
        const char *names[4];
    } known[] = {
        {"resnet18",
         122,
         11689512,
         {"conv1.weight", "layer1.0.bn1.running_mean", "layer2.0.downsample.0.weight", "fc.bias"}},
        {"resnet50",
         320,
         25557032,
         {"layer1.0.downsample.1.num_batches_tracked", "layer3.5.conv3.weight", "layer4.2.bn3.bias", "fc.weight"}},
        {"resnext101_32x8d",
         626,
         88791336,
         {"layer1.2.conv2.weight", "layer3.22.bn2.running_var", "layer4.0.downsample.0.weight", "bn1.weight"}},
    };
    for (size_t i = 0; i < (SLOW_BUILD ? 1 : sizeof known / sizeof *known); i++) {
        struct resnet r;
        OK(resnet_init(&r, &(struct resnet_options){.depth = known[i].depth}));
        size_t n, np;
        const rp_named_tensor *all = rp_module_state(r.module, &n);
        assert_int_equal(n, known[i].tensors);
        rp_tensor *const *params = rp_module_parameters(r.module, &np);
        int64_t elements = 0;
        for (size_t k = 0; k < np; k++) elements += rp_numel(params[k]);
        assert_int_equal(elements, known[i].parameters);
        for (int name = 0; name < 4; name++) {
            bool found = false;
            for (size_t k = 0; k < n; k++) found = found || strcmp(all[k].name, known[i].names[name]) == 0;
            if (!found) fail_msg("%s has no %s", known[i].depth, known[i].names[name]);
        }
        resnet_release(&r);
    }
    struct resnet none;
    assert_int_equal(resnet_init(&none, &(struct resnet_options){.depth = "resnet19"}), RP_ERROR_INVALID_ARGUMENT);
}

/* ---------------------------------------------------------------- BERT */

/* What is masked has no part in what the others get. */
static void padding_is_not_seen(void **state) {
    (void)state;
    struct bert b;
    OK(bert_init(&b,
                 &(struct bert_options){
                     .vocabulary = 50, .hidden = 24, .layers = 2, .heads = 3, .intermediate = 40, .positions = 16}));
    OK(rp_module_set_training(b.module, false));
    int64_t ids[2][6] = {{3, 7, 9, 1, 40, 41}, {3, 7, 9, 1, 8, 2}};
    float mask[6] = {1, 1, 1, 1, 0, 0}, y[2][6 * 24];
    for (int i = 0; i < 2; i++) {
        rp_tensor *x = rp_from_data(ids[i], RP_DIMS(1, 6), RP_I64), *m = rp_from_data(mask, RP_DIMS(1, 6), RP_F32);
        rp_tensor *out = rp_detach(bert_forward(&b, x, NULL, m));
        OK(rp_to_host(out, y[i], sizeof y[i]));
        assert_int_equal(rp_size(bert_pool(&b, out), 1), 24);
    }
    assert_memory_equal(y[0], y[1], 4 * 24 * sizeof(float));
    bert_release(&b);
}

static void names_of_hugging_face(void **state) {
    (void)state;
    struct bert b;
    size_t n, np;
    OK(bert_init(&b, &(struct bert_options){.masked_lm = true}));
    const rp_named_tensor *all = rp_module_state(b.module, &n);
    assert_int_equal(n, 5 + 12 * 16 + 5 + 2);
    assert_string_equal(all[0].name, "bert.embeddings.word_embeddings.weight");
    assert_string_equal(all[5].name, "bert.encoder.layer.0.attention.self.query.weight");
    assert_string_equal(all[5 + 12 * 16 - 1].name, "bert.encoder.layer.11.output.LayerNorm.bias");
    rp_tensor *const *params = rp_module_parameters(b.module, &np);
    int64_t elements = 0;
    for (size_t k = 0; k < np; k++) elements += rp_numel(params[k]);
    assert_int_equal(elements, 109514298); /* of BertForMaskedLM */
    bert_release(&b);
    assert_int_equal(bert_init(&b, &(struct bert_options){.heads = 7}), RP_ERROR_INVALID_ARGUMENT);
}

/* Rows of token 0, which pads, get no gradient; those of others do. */
static void padding_is_not_learnt(void **state) {
    (void)state;
    struct model m;
    OK(model_init(&m, model_find("bert-tiny")));
    struct bert *b = m.self;
    int64_t ids[4] = {5, 0, 7, 0};
    rp_tensor *y = bert_forward(b, rp_from_data(ids, RP_DIMS(1, 4), RP_I64), NULL, NULL);
    OK(rp_backward(rp_sum(rp_mul(y, y)), NULL, NULL));
    rp_tensor *sums = rp_sum(rp_abs(rp_grad_of(b->words.weight)), RP_DIMS(1));
    float of_token[50];
    OK(rp_to_host(sums, of_token, sizeof of_token));
    assert_true(of_token[0] == 0 && of_token[5] > 0 && of_token[7] > 0 && of_token[8] == 0);
    model_release(&m);
}

/* ---------------------------------------------------------------- names and sizes of the others */

static bool has(rp_module *m, const char *name) {
    size_t n;
    const rp_named_tensor *all = rp_module_state(m, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0) return true;
    return false;
}
static int64_t elements_of(rp_module *m) {
    size_t n;
    int64_t elements = 0;
    rp_tensor *const *params = rp_module_parameters(m, &n);
    for (size_t i = 0; i < n; i++) elements += rp_numel(params[i]);
    return elements;
}

static void names_of_the_others(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int64_t elements;
        const char *names[5];
    } known[] = {
        {"mlp", 1354, {"0.weight", "2.bias"}},
        {"cnn", 34826, {"conv1.weight", "conv2.bias", "fc.weight"}},
        {"rnn", 3466, {"rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0", "fc.bias"}},
        {"vit_b_16",
         86567656,
         {"cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.11.attn.qkv.bias", "norm.weight"}},
        {"vit-tiny-torchvision",
         67258,
         {"class_token", "conv_proj.bias", "encoder.pos_embedding",
          "encoder.layers.encoder_layer_1.self_attention.in_proj_weight", "heads.head.weight"}},
        {"gpt2",
         124439808,
         {"transformer.wte.weight", "transformer.h.11.attn.c_attn.weight", "transformer.h.0.mlp.c_proj.bias",
          "transformer.ln_f.weight", "lm_head.weight"}},
        {"llama",
         134515008,
         {"model.embed_tokens.weight", "model.layers.29.self_attn.k_proj.weight", "model.layers.0.mlp.gate_proj.weight",
          "model.layers.0.post_attention_layernorm.weight", "lm_head.weight"}},
    };
    for (size_t i = 0; i < (SLOW_BUILD ? 1 : sizeof known / sizeof *known); i++) {
        struct model m;
        OK(model_init(&m, model_find(known[i].model)));
        if (elements_of(m.module) != known[i].elements)
            fail_msg("%s has %lld parameters", known[i].model, (long long)elements_of(m.module));
        for (int k = 0; k < 5 && known[i].names[k]; k++)
            if (!has(m.module, known[i].names[k])) fail_msg("%s has no %s", known[i].model, known[i].names[k]);
        model_release(&m);
    }
    struct vit v;
    assert_int_equal(vit_init(&v, &(struct vit_options){.side = 30}), RP_ERROR_INVALID_ARGUMENT);
    struct gpt2 g;
    assert_int_equal(gpt2_init(&g, &(struct gpt2_options){.heads = 5}), RP_ERROR_INVALID_ARGUMENT);
    struct llama l;
    assert_int_equal(llama_init(&l, &(struct llama_options){.kv_heads = 2}), RP_ERROR_INVALID_ARGUMENT);
}

/* ---------------------------------------------------------------- generation */

enum { PROMPT = 5, MORE = 12, TEXTS = 2, VOCABULARY = 50 };

/* What the model says without a cache: the whole text goes in again for each token. */
static void generate_plainly(const struct model *m, const int64_t (*prompt)[PROMPT], int64_t (*out)[MORE]) {
    int64_t text[TEXTS][PROMPT + MORE];
    for (int b = 0; b < TEXTS; b++) memcpy(text[b], prompt[b], sizeof prompt[b]);
    for (int64_t t = 0; t < MORE; t++) {
        rp_scope inner = rp_scope_begin();
        int64_t ids[TEXTS * (PROMPT + MORE)], next[TEXTS];
        for (int b = 0; b < TEXTS; b++) memcpy(ids + b * (PROMPT + t), text[b], (size_t)(PROMPT + t) * sizeof *ids);
        rp_tensor *in = rp_from_data(ids, RP_DIMS(TEXTS, PROMPT + t), RP_I64), *y = NULL;
        rp_fn fn = model_forward(m);
        fn.body(fn.ctx, &in, 1, &y, 1);
        OK(rp_to_host(rp_argmax(rp_select(y, 1, PROMPT + t - 1), -1), next, sizeof next));
        for (int b = 0; b < TEXTS; b++) out[b][t] = text[b][PROMPT + t] = next[b];
        OK(rp_scope_end(inner, NULL, 0));
    }
}

static void generate(struct decoder *d, rp_compiled *step, const int64_t (*prompt)[PROMPT], int64_t (*out)[MORE]) {
    int64_t next[TEXTS];
    OK(decoder_prompt(d, rp_from_data(prompt, RP_DIMS(TEXTS, PROMPT), RP_I64)));
    for (int t = 0; t < MORE; t++) {
        rp_scope inner = rp_scope_begin();
        OK(rp_to_host(d->token, next, sizeof next));
        for (int b = 0; b < TEXTS; b++) out[b][t] = next[b];
        rp_tensor *token = NULL;
        OK(rp_call(step, NULL, 0, &token, 1));
        OK(rp_scope_end(inner, NULL, 0));
    }
}

static void same_tokens(const char *way, int64_t (*have)[MORE], int64_t (*want)[MORE]) {
    for (int b = 0; b < TEXTS; b++)
        for (int t = 0; t < MORE; t++)
            if (have[b][t] != want[b][t])
                fail_msg("%s: text %d, token %d is %lld, not %lld", way, b, t, (long long)have[b][t],
                         (long long)want[b][t]);
}

/* A step of the decoder eagerly, compiled, by graphed callables and as a captured graph, against the model without a
   cache. */
static void generates(const struct model *m, struct decoder *d) {
    static const int64_t prompt[TEXTS][PROMPT] = {{3, 1, 4, 1, 5}, {9, 2, 6, 5, 3}};
    int64_t want[TEXTS][MORE], have[TEXTS][MORE];
    bool grad = rp_set_grad_enabled(false);
    generate_plainly(m, prompt, want);
    rp_fn fn = {decoder_body, d, sizeof *d, "decode"};
    rp_compiled *plain = rp_plain(fn), *graphed = NULL;
    generate(d, plain, prompt, have);
    same_tokens("eager", have, want);
    rp_compiled *fused = rp_compile_module(m->module, fn, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    generate(d, fused, prompt, have);
    same_tokens("fused", have, want);
    generate(d, fused, prompt, have); /* another text from the beginning, with what was recorded */
    same_tokens("fused again", have, want);
    const rp_graphed_callable one = {fn, NULL, 0, NULL, 0, 1};
    OK(rp_make_graphed_callables(&one, 1, NULL, &graphed));
    generate(d, graphed, prompt, have);
    same_tokens("graphed", have, want);
    rp_compiled_release(graphed);
    rp_compiled_release(fused);
    rp_compiled_release(plain);

    /* With a temperature tokens are drawn: alike from equal seeds, and from the most probable ones alone. */
    int64_t drawn[2][TEXTS][MORE];
    d->temperature = 1.5;
    d->top = 3;
    for (int i = 0; i < 2; i++) {
        rp_compiled *f =
            i ? rp_compile_module(m->module, fn, RP_OPTIONS(rp_compile_options, .fullgraph = true)) : rp_plain(fn);
        OK(rp_manual_seed(11));
        generate(d, f, prompt, drawn[i]);
        rp_compiled_release(f);
    }
    same_tokens("drawn", drawn[1], drawn[0]);
    rp_set_grad_enabled(grad);
}

/* Weights large enough that the most probable token is not always the same. */
static void spread(rp_module *m) {
    size_t n;
    rp_tensor *const *params = rp_module_parameters(m, &n);
    for (size_t i = 0; i < n; i++)
        if (rp_ndim(params[i]) > 1) OK(rp_init_normal(params[i], 0, 0.3));
}

static void gpt2_generates(void **state) {
    (void)state;
    struct model m;
    struct decoder d;
    OK(model_init(&m, model_find("gpt2-tiny")));
    spread(m.module);
    OK(gpt2_decoder(m.self, &d, TEXTS, 24));
    generates(&m, &d);
    decoder_release(&d);
    assert_int_equal(gpt2_decoder(m.self, &d, 1, 33), RP_ERROR_INVALID_ARGUMENT);
    model_release(&m);
}

static void llama_generates(void **state) {
    (void)state;
    struct model m;
    struct decoder d;
    OK(model_init(&m, model_find("llama-tiny")));
    spread(m.module);
    OK(llama_decoder(m.self, &d, TEXTS, 24));
    generates(&m, &d);
    decoder_release(&d);
    assert_int_equal(llama_decoder(m.self, &d, 1, 33), RP_ERROR_INVALID_ARGUMENT);
    model_release(&m);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, scope_setup, scope_teardown)
    const struct CMUnitTest tests[] = {
        TEST(table_is_sound),
        TEST(functions_of_numbers),
        TEST(names_of_torchvision),
        TEST(padding_is_not_seen),
        TEST(padding_is_not_learnt),
        TEST(names_of_hugging_face),
        TEST(names_of_the_others),
        TEST(mlp_trains),
        TEST(cnn_trains),
        TEST(rnn_trains),
        TEST(lstm_trains),
        TEST(resnet_trains),
        TEST(resnext_trains),
        TEST(vit_trains),
        TEST(bert_trains),
        TEST(gpt2_trains),
        TEST(llama_trains),
        TEST(gpt2_generates),
        TEST(llama_generates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
