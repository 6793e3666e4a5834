/* See program.h. Only ops and layers that a user would write; nothing here measures or prints. */
#include "program.h"

#include <reprise_io.h>

#include <string.h>

static rp_status status_now(void) { return rp_failed() ? rp_error_status() : RP_OK; }

bool cli_program_trains(const struct model_kind *kind) { return kind->loss != MODEL_UNTRAINED; }

rp_status cli_program_inputs(const struct cli_program *p, const struct cli_program_options *options, rp_tensor **in) {
    const rp_dtype dtype = options->dtype == RP_DTYPE_NONE ? RP_F32 : options->dtype;
    return model_inputs(&p->model, options->batch, options->length, dtype, in);
}

static rp_status load(struct cli_program *p, const struct cli_program_options *o) {
    if (!o->weights) return RP_OK;
    rp_load_options options = {.struct_size = sizeof options, .prefix = o->prefix};
    return rp_load(o->weights, p->model.module, &options);
}

static rp_status fill(struct cli_program *p, const struct cli_program_options *o) {
    rp_module *m = p->model.module;
    rp_status status = RP_OK;
    if (m && o->dtype != RP_DTYPE_NONE) status = rp_module_to_dtype(m, o->dtype);
    if (!status && m) status = load(p, o);
    if (!status) status = cli_program_inputs(p, o, p->in);
    const size_t n = model_n_inputs(p->model.kind), all = n + (p->model.kind->loss == MODEL_CLASSES);
    for (size_t i = 0; i < all && !status; i++) rp_retain(p->in[i]);
    if (status) {
        memset(p->in, 0, sizeof p->in); /* of the scope, not ours */
        return status;
    }
    if (!cli_program_trains(p->model.kind)) return RP_OK;
    p->params = m ? rp_module_parameters(m, &p->n_params) : p->in;
    if (!m) p->n_params = n;
    for (size_t i = 0; !m && i < n; i++) rp_set_requires_grad(p->in[i], true);
    const double rate = o->rate > 0 ? o->rate : p->model.kind->rate > 0 ? p->model.kind->rate : 1e-3;
    p->optimizer = m ? rp_adam_module(m, rate, NULL) : rp_adam(p->params, p->n_params, rate, NULL);
    return status_now();
}

rp_status cli_program_make(struct cli_program *p, const struct model_kind *kind,
                           const struct cli_program_options *options) {
    memset(p, 0, sizeof *p); /* its bytes are compared by compiled functions, so padding must be equal too */
    rp_scope scope = rp_scope_begin();
    rp_status status = rp_manual_seed(options->seed ? options->seed : 1);
    if (!status) status = model_init(&p->model, kind);
    if (!status) status = fill(p, options);
    rp_status ended = rp_scope_end(scope, NULL, 0);
    if (!status) status = ended;
    if (status) cli_program_release(p);
    return status;
}

void cli_program_release(struct cli_program *p) {
    rp_optimizer_release(p->optimizer);
    for (size_t i = 0; i <= MODEL_MAX_INPUTS; i++) rp_release(p->in[i]);
    model_release(&p->model);
    memset(p, 0, sizeof *p);
}

size_t cli_program_n_in(const struct cli_program *p, bool step) {
    const size_t n = model_n_inputs(p->model.kind);
    return !step ? n : p->model.module ? n + (p->model.kind->loss == MODEL_CLASSES) : 0;
}

rp_fn cli_program_forward(struct cli_program *p) { return model_forward(&p->model); }

static void step_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct cli_program *p = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *const *args =
        p->model.module ? in : p->params; /* without a module the arguments themselves are trained */
    const size_t n = model_n_inputs(p->model.kind);
    rp_fn fn = model_forward(&p->model);
    rp_tensor *y = NULL;
    if (p->forward)
        rp_call(p->forward, args, n, &y, 1);
    else
        fn.body(fn.ctx, args, n, &y, 1);
    rp_tensor *loss = model_loss(&p->model, y, in);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(p->optimizer);
    rp_optimizer_zero_grad(p->optimizer, true);
    out[0] = rp_detach(loss);
}

rp_fn cli_program_step(struct cli_program *p) { return (rp_fn){step_body, p, sizeof *p, p->model.kind->name}; }

rp_compiled *cli_program_compile(struct cli_program *p, rp_fn fn, const rp_compile_options *options) {
    return p->model.module ? rp_compile_module(p->model.module, fn, options) : rp_compile(fn, options);
}
