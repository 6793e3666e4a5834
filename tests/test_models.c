/* The models of models/, small: names of their states, and one training program each that runs eagerly, compiled, as a whole step and
   around a saved state, to the same bits. Against PyTorch on the same weights: tests/conformance. */
/* ctest: timeout=300 cost=20 */
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
#include "resnet.h"
#include "support/in_scope.h"

/* ---------------------------------------------------------------- one training program, several ways */

enum way { EAGER, COMPILED, WHOLE_STEP };

struct program {
    rp_module *module;
    rp_body *forward;
    void *ctx;
    rp_optimizer *opt;
    rp_compiled *f; /* NULL: the body itself */
    size_t n_in;    /* of the forward; targets follow */
};

static void train_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct program *p = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *y = NULL;
    if (p->f)
        rp_call(p->f, in, p->n_in, &y, 1);
    else
        p->forward(p->ctx, in, p->n_in, &y, 1);
    if (rp_ndim(y) == 3) y = rp_flatten(y, 0, 1);
    rp_tensor *loss = rp_cross_entropy(y, in[p->n_in]);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(p->opt);
    rp_optimizer_zero_grad(p->opt, true);
    out[0] = rp_detach(loss);
}

/* Bytes of all state after n steps, behind the losses. */
static size_t train(struct program p, enum way way, rp_tensor *const *in, int n, char *out, size_t room) {
    size_t at = 0, count;
    p.opt = rp_sgd_module(p.module, 0.01, RP_OPTIONS(rp_sgd_options, .momentum = 0.9));
    rp_fn fn = {p.forward, p.ctx, 0, "model"}, step = {train_step, &p, sizeof p, "step"};
    p.f = way == COMPILED ? rp_compile_module(p.module, fn, RP_OPTIONS(rp_compile_options, .fullgraph = true)) : NULL;
    rp_compiled *f = way == WHOLE_STEP
                         ? rp_compile_module(p.module, step, RP_OPTIONS(rp_compile_options, .fullgraph = true))
                         : rp_plain(step);
    for (int i = 0; i < n; i++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *loss = NULL;
        OK(rp_call(f, in, p.n_in + 1, &loss, 1));
        OK(rp_to_host(loss, out + at, 4));
        at += 4;
        OK(rp_scope_end(inner, NULL, 0));
    }
    const rp_named_tensor *all = rp_module_state(p.module, &count);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = (size_t)rp_numel(all[i].tensor) * rp_dtype_size(rp_dtype_of(all[i].tensor));
        assert_true(at + bytes <= room);
        OK(rp_to_host(all[i].tensor, out + at, bytes));
        at += bytes;
    }
    rp_compiled_release(f);
    rp_compiled_release(p.f);
    rp_optimizer_release(p.opt);
    return at;
}

enum { ROOM = 16 << 20, STEPS = 4 };
static char results[3][ROOM];

static void equal_ways(size_t (*run)(enum way way, char *out)) {
    size_t n = run(EAGER, results[0]);
    float first, last;
    memcpy(&first, results[0], 4);
    memcpy(&last, results[0] + 4 * (STEPS - 1), 4);
    assert_true(last < first);
    for (enum way w = COMPILED; w <= WHOLE_STEP; w++) {
        assert_int_equal(run(w, results[w]), n);
        for (size_t i = 0; i < n; i++)
            if (results[w][i] != results[0][i]) fail_msg("way %d: byte %zu of %zu differs", (int)w, i, n);
    }
}

/* ---------------------------------------------------------------- ResNet */

static size_t run_resnet(const char *depth, int64_t width, enum way way, char *out) {
    struct resnet r;
    OK(rp_manual_seed(7));
    OK(resnet_init(&r, &(struct resnet_options){.depth = depth, .classes = 3, .width = width}));
    rp_tensor *in[] = {rp_randn(RP_DIMS(2, 3, 33, 40)), rp_randint(0, 3, RP_DIMS(2))};
    size_t n = train((struct program){.module = r.module, .forward = resnet_body, .ctx = &r, .n_in = 1}, way, in, STEPS,
                     out, ROOM);
    resnet_release(&r);
    return n;
}
static size_t run_resnet18(enum way way, char *out) { return run_resnet("resnet18", 8, way, out); }
static size_t run_resnext50(enum way way, char *out) { return run_resnet("resnext50_32x4d", 16, way, out); }

static void resnet18_trains(void **state) {
    (void)state;
    equal_ways(run_resnet18);
}
static void resnext50_trains(void **state) {
    (void)state;
    equal_ways(run_resnext50);
}

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
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
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

static const struct bert_options small = {.vocabulary = 50,
                                          .hidden = 24,
                                          .layers = 2,
                                          .heads = 3,
                                          .intermediate = 40,
                                          .positions = 16,
                                          .dropout = 0.1,
                                          .masked_lm = true};

static size_t run_bert(enum way way, char *out) {
    struct bert b;
    OK(rp_manual_seed(9));
    OK(bert_init(&b, &small));
    float mask[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0};
    rp_tensor *in[] = {rp_randint(0, 50, RP_DIMS(2, 6)), rp_randint(0, 2, RP_DIMS(2, 6)),
                       rp_from_data(mask, RP_DIMS(2, 6), RP_F32), rp_randint(0, 50, RP_DIMS(12))};
    size_t n = train((struct program){.module = b.module, .forward = bert_body, .ctx = &b, .n_in = 3}, way, in, STEPS,
                     out, ROOM);
    bert_release(&b);
    return n;
}

static void bert_trains(void **state) {
    (void)state;
    equal_ways(run_bert);
}

/* What is masked has no part in what the others get. */
static void padding_is_not_seen(void **state) {
    (void)state;
    struct bert b;
    struct bert_options o = small;
    o.masked_lm = false;
    OK(bert_init(&b, &o));
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

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, scope_setup, scope_teardown)
    const struct CMUnitTest tests[] = {
        TEST(names_of_torchvision), TEST(resnet18_trains),     TEST(resnext50_trains),
        TEST(bert_trains),          TEST(padding_is_not_seen), TEST(names_of_hugging_face),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
