/* One model of models/ on weights and inputs of a file, for models.py, which made the file and compares what comes back:
 *     model_run MODEL IN.safetensors OUT.safetensors WAY STEPS
 * WAY: eager, compiled, step (the whole training step recorded), float64 (eager, of that type). IN holds the weights as "model.NAME", arguments as "input.0", ... and
 * class numbers as "target". OUT gets "output", "loss.K" of each step, "grad.NAME" of the first, "after.NAME" behind the last. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>
#include <reprise_io.h>

#include "bert.h"
#include "resnet.h"

static struct resnet resnet;
static struct bert bert;

struct program {
    rp_module *module;
    rp_body *forward;
    void *ctx;
    size_t n_in;
    rp_compiled *f;
    rp_optimizer *opt;
};

static int failed(const char *what) {
    fprintf(stderr, "model_run: %s: %s\n", what, rp_error_message());
    return 1;
}

static rp_status make(struct program *p, const char *model) {
    rp_status status;
    if (strncmp(model, "bert", 4) == 0) {
        status = bert_init(
            &bert, &(struct bert_options){.dropout = -1, .masked_lm = true, .layers = strcmp(model, "bert2") ? 12 : 2});
        *p = (struct program){.module = bert.module, .forward = bert_body, .ctx = &bert};
    } else {
        status = resnet_init(&resnet, &(struct resnet_options){.depth = model});
        *p = (struct program){.module = resnet.module, .forward = resnet_body, .ctx = &resnet};
    }
    return status;
}

static rp_tensor *loss_of(struct program *p, rp_tensor *const *in, rp_tensor **y) {
    if (p->f)
        rp_call(p->f, in, p->n_in, y, 1);
    else
        p->forward(p->ctx, in, p->n_in, y, 1);
    return rp_cross_entropy(rp_ndim(*y) == 3 ? rp_flatten(*y, 0, 1) : *y, in[p->n_in]);
}

static void step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct program *p = ctx;
    rp_tensor *y = NULL;
    (void)n_in, (void)n_out;
    rp_tensor *loss = loss_of(p, in, &y);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(p->opt);
    rp_optimizer_zero_grad(p->opt, true);
    out[0] = rp_detach(loss);
}

int main(int argc, char **argv) {
    enum { MAX_IN = 4, MAX_STEPS = 16 };
    struct program p;
    if (argc != 6 || atoi(argv[5]) > MAX_STEPS) return fprintf(stderr, "usage: model_run MODEL IN OUT WAY STEPS\n"), 2;
    if (getenv("MODEL_RUN_DEVICE") && rp_set_default_device(rp_cuda(0)) != RP_OK) return failed("device");
    rp_set_deterministic(true); /* gradients of embeddings are otherwise added up in any order on a GPU */
    if (make(&p, argv[1]) != RP_OK) return failed(argv[1]);
    if (strcmp(argv[4], "float64") == 0 && rp_module_to_dtype(p.module, RP_F64) != RP_OK) return failed("float64");
    if (rp_load(argv[2], p.module, RP_OPTIONS(rp_load_options, .prefix = "model.")) != RP_OK) return failed("weights");
    rp_safetensors *file = rp_safetensors_open(argv[2]);
    rp_tensor *in[MAX_IN + 1];
    char name[32];
    while (p.n_in < MAX_IN && (snprintf(name, sizeof name, "input.%zu", p.n_in), rp_safetensors_has(file, name)))
        in[p.n_in++] = rp_safetensors_tensor(file, name);
    in[p.n_in] = rp_safetensors_tensor(file, "target");
    if (rp_failed()) return failed("inputs");

    size_t n, steps = (size_t)atoi(argv[5]), k = 0;
    const rp_named_tensor *state = rp_module_state(p.module, &n);
    rp_named_tensor *out = calloc(2 * n + MAX_STEPS + 1, sizeof *out);
    char(*names)[160] = calloc(2 * n + MAX_STEPS + 1, sizeof *names);
    if (!out || !names) return 1;
    const rp_compile_options whole = {.struct_size = sizeof whole, .fullgraph = true};
    p.opt = rp_sgd_module(p.module, 1.0 / 128, RP_OPTIONS(rp_sgd_options, .momentum = 0.9));
    p.f =
        strcmp(argv[4], "compiled") ? NULL : rp_compile_module(p.module, (rp_fn){p.forward, p.ctx, 0, "model"}, &whole);
    /* Outputs and gradients as before the first step: gradients are taken, buffers put back by loading again. */
    rp_tensor *y = NULL;
    if (rp_backward(loss_of(&p, in, &y), NULL, NULL) != RP_OK) return failed("backward");
    out[k++] = (rp_named_tensor){"output", rp_clone(rp_detach(y))};
    for (size_t i = 0; i < n; i++) {
        rp_tensor *grad = rp_grad_of(state[i].tensor);
        if (!grad) continue;
        snprintf(names[k], sizeof *names, "grad.%s", state[i].name);
        out[k] = (rp_named_tensor){names[k], rp_clone(grad)};
        k++;
    }
    if (rp_optimizer_zero_grad(p.opt, true) != RP_OK ||
        rp_load(argv[2], p.module, RP_OPTIONS(rp_load_options, .prefix = "model.")) != RP_OK)
        return failed("weights again");
    rp_fn fn = {step, &p, sizeof p, "step"};
    rp_compiled *f = strcmp(argv[4], "step") ? rp_plain(fn) : rp_compile_module(p.module, fn, &whole);
    for (size_t i = 0; i < steps; i++) {
        rp_tensor *loss = NULL;
        if (rp_call(f, in, p.n_in + 1, &loss, 1) != RP_OK) return failed("step");
        snprintf(names[k], sizeof *names, "loss.%zu", i);
        out[k] = (rp_named_tensor){names[k], rp_clone(loss)};
        k++;
    }
    for (size_t i = 0; i < n; i++, k++) {
        snprintf(names[k], sizeof *names, "after.%s", state[i].name);
        out[k] = (rp_named_tensor){names[k], state[i].tensor};
    }
    if (rp_failed() || rp_safetensors_save(argv[3], out, k, NULL, 0) != RP_OK) return failed("results");
    rp_compiled_release(f);
    rp_compiled_release(p.f);
    rp_optimizer_release(p.opt);
    rp_safetensors_release(file);
    rp_module_release(p.module);
    free(out);
    free(names);
    return rp_failed() ? failed("end") : 0;
}
