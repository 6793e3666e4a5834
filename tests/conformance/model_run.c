/* One model of models/ on weights and inputs of a file, for models.py, which made the file and compares what comes
 * back:
 *     model_run MODEL IN.safetensors OUT.safetensors WAY STEPS
 * WAY: eager, compiled, graphed (its forward and backward captured), step (the whole training step recorded), float64
 * (eager, of that type). IN holds the weights as "model.NAME", arguments as "input.0", ... the loss's "target", SGD's "rate" and, unless
 * it has none yet, its "momentum.NAME". OUT gets "output", "loss.K" of each step, "grad.NAME" of the first, "after.NAME" behind the last; of a function without
 * parameters "output" and "grad.input.0", ... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>
#include <reprise_io.h>

#include "model.h"

enum { MAX_STEPS = 16 };

struct program {
    struct model model;
    rp_compiled *f; /* the forward; NULL: the body itself */
    rp_optimizer *opt;
};

static int failed(const char *what) {
    fprintf(stderr, "model_run: %s: %s\n", what, rp_error_message());
    return 1;
}

static rp_tensor *loss_of(const struct program *p, rp_tensor *const *in, rp_tensor **y) {
    const size_t n = model_n_inputs(p->model.kind);
    rp_fn fn = model_forward(&p->model);
    if (p->f)
        rp_call(p->f, in, n, y, 1);
    else
        fn.body(fn.ctx, in, n, y, 1);
    return model_loss(&p->model, *y, in);
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

static rp_compiled *recorded(const struct model *m, rp_fn fn) {
    const rp_compile_options whole = {.struct_size = sizeof whole, .fullgraph = true};
    return m->module ? rp_compile_module(m->module, fn, &whole) : rp_compile(fn, &whole);
}

static rp_compiled *graphed(const struct model *m, rp_tensor *const *in) {
    size_t n = 0;
    rp_tensor *const *params = m->module ? rp_module_parameters(m->module, &n) : NULL;
    const rp_graphed_callable one = {model_forward(m), in, model_n_inputs(m->kind), params, n, 1};
    rp_compiled *f = NULL;
    rp_make_graphed_callables(&one, 1, RP_OPTIONS(rp_graphed_options, .training = true), &f);
    return f;
}

static rp_status load(const char *path, const struct model *m) {
    return m->module ? rp_load(path, m->module, RP_OPTIONS(rp_load_options, .prefix = "model.")) : RP_OK;
}

/* The optimizer's state, where the file has it. */
static rp_status load_momentum(rp_safetensors *file, const struct program *p) {
    size_t n = 0;
    const rp_named_tensor *params = p->model.module ? rp_module_named_parameters(p->model.module, &n) : NULL;
    for (size_t i = 0; i < n; i++) {
        char name[160];
        snprintf(name, sizeof name, "momentum.%s", params[i].name);
        if (rp_safetensors_has(file, name))
            rp_copy_(rp_optimizer_state(p->opt, 0, i, "momentum_buffer"), rp_safetensors_tensor(file, name));
    }
    return rp_failed() ? RP_ERROR_INVALID_ARGUMENT : RP_OK;
}

/* What goes into the file of results. */
struct results {
    rp_named_tensor *list;
    char (*names)[160];
    size_t n;
};
static void add(struct results *r, const char *kind, const char *name, rp_tensor *t) {
    snprintf(r->names[r->n], sizeof *r->names, "%s%s", kind, name);
    r->list[r->n] = (rp_named_tensor){r->names[r->n], rp_clone(rp_detach(t))};
    r->n++;
}

static int train(struct program *p, const char *path, rp_tensor *const *in, bool whole, size_t steps,
                 const rp_named_tensor *state, size_t n, struct results *r) {
    char number[24];
    rp_fn fn = {step, p, sizeof *p, "step"};
    rp_compiled *f = whole ? recorded(&p->model, fn) : rp_plain(fn);
    for (size_t i = 0; i < steps; i++) {
        rp_tensor *loss = NULL;
        if (rp_call(f, in, model_n_inputs(p->model.kind) + 1, &loss, 1) != RP_OK) return failed("step");
        snprintf(number, sizeof number, "%zu", i);
        add(r, "loss.", number, loss);
    }
    for (size_t i = 0; i < n; i++) add(r, "after.", state[i].name, state[i].tensor);
    rp_compiled_release(f);
    return rp_failed() ? failed(path) : 0;
}

int main(int argc, char **argv) {
    struct program p = {0};
    if (argc != 6 || atoi(argv[5]) > MAX_STEPS) return fprintf(stderr, "usage: model_run MODEL IN OUT WAY STEPS\n"), 2;
    const char *path = argv[2], *way = argv[4];
    const struct model_kind *kind = model_find(argv[1]);
    if (!kind) return fprintf(stderr, "model_run: no model '%s'\n", argv[1]), 2;
    if (getenv("MODEL_RUN_DEVICE") && rp_set_default_device(rp_cuda(0)) != RP_OK) return failed("device");
    rp_set_deterministic(true); /* gradients of embeddings are otherwise added up in any order on a GPU */
    if (model_init(&p.model, kind) != RP_OK) return failed(argv[1]);
    rp_module *m = p.model.module;
    if (m && strcmp(way, "float64") == 0 && rp_module_to_dtype(m, RP_F64) != RP_OK) return failed(way);
    if (load(path, &p.model) != RP_OK) return failed("weights");
    rp_safetensors *file = rp_safetensors_open(path);
    rp_tensor *in[MODEL_MAX_INPUTS + 1] = {NULL};
    char name[32];
    size_t n_in = model_n_inputs(kind), n = 0;
    for (size_t i = 0; i < n_in; i++) {
        snprintf(name, sizeof name, "input.%zu", i);
        in[i] = rp_safetensors_tensor(file, name);
        if (!m && rp_set_requires_grad(in[i], true) != RP_OK) return failed(name);
    }
    if (kind->loss == MODEL_CLASSES) in[n_in] = rp_safetensors_tensor(file, "target");
    if (rp_failed()) return failed("inputs");

    const rp_named_tensor *state = m ? rp_module_state(m, &n) : NULL;
    const size_t room = 2 * n + MAX_STEPS + MODEL_MAX_INPUTS + 1;
    struct results r = {calloc(room, sizeof *r.list), calloc(room, sizeof *r.names), 0};
    if (!r.list || !r.names) return 1;
    if (m)
        p.opt = rp_sgd_module(m, rp_item_f64(rp_safetensors_tensor(file, "rate")),
                              RP_OPTIONS(rp_sgd_options, .momentum = 0.9));
    if (strcmp(way, "compiled") == 0) p.f = recorded(&p.model, model_forward(&p.model));
    if (strcmp(way, "graphed") == 0) p.f = graphed(&p.model, in);
    /* Outputs and gradients as before the first step: gradients are taken; buffers, which warming up may have changed,
       are loaded. */
    rp_tensor *y = NULL;
    if (rp_failed() || load(path, &p.model) != RP_OK) return failed(way);
    if (rp_backward(loss_of(&p, in, &y), NULL, NULL) != RP_OK) return failed("backward");
    add(&r, "output", "", y);
    for (size_t i = 0; i < n; i++)
        if (rp_grad_of(state[i].tensor)) add(&r, "grad.", state[i].name, rp_grad_of(state[i].tensor));
    for (size_t i = 0; i < n_in && !m; i++) {
        snprintf(name, sizeof name, "%zu", i);
        add(&r, "grad.input.", name, rp_grad_of(in[i]));
    }
    if (m) {
        if (rp_optimizer_zero_grad(p.opt, true) != RP_OK || load(path, &p.model) != RP_OK ||
            load_momentum(file, &p) != RP_OK)
            return failed("weights again");
        int code = train(&p, path, in, strcmp(way, "step") == 0, (size_t)atoi(argv[5]), state, n, &r);
        if (code) return code;
    }
    if (rp_failed() || rp_safetensors_save(argv[3], r.list, r.n, NULL, 0) != RP_OK) return failed("results");
    rp_compiled_release(p.f);
    rp_optimizer_release(p.opt);
    rp_safetensors_release(file);
    model_release(&p.model);
    free(r.list);
    free(r.names);
    return rp_failed() ? failed("end") : 0;
}
