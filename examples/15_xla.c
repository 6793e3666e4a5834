/* XLA behind rp_compile, through a PJRT plug-in (REPRISE_PJRT_PLUGIN names one): forward and backward are two executables, and the
   optimizer's step stays in fused kernels. Without a plug-in everything does, and explain says so. */
#include <reprise.h>
#include <reprise_nn.h>
#include <stdio.h>
#include <string.h>

static void loss_of(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *const *w = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_mse_loss(rp_linear(rp_tanh(rp_linear(in[0], w[0], w[1])), w[2], w[3]), in[1]);
}

int main(void) {
    rp_scope scope = rp_scope_begin();
    rp_manual_seed(1);
    rp_backend_info info = {.struct_size = sizeof info};
    rp_backend_info_get("xla", &info);
    printf("XLA: %s\n", info.available ? info.version : "not here");

    rp_tensor *w[4] = {rp_mul_scalar(rp_randn(RP_DIMS(32, 2)), rp_f64(0.5)), rp_zeros(RP_DIMS(32)),
                       rp_mul_scalar(rp_randn(RP_DIMS(1, 32)), rp_f64(0.2)), rp_zeros(RP_DIMS(1))};
    for (int k = 0; k < 4; k++) rp_set_requires_grad(w[k], true);
    rp_optimizer *adam = rp_adam(w, 4, 0.02, NULL);
    rp_compiled *f =
        rp_compile((rp_fn){loss_of, w, sizeof w, "loss"}, RP_OPTIONS(rp_compile_options, .backend = "xla"));

    rp_tensor *x = rp_randn(RP_DIMS(64, 2)), *y = rp_prod(x, 1, true);
    double first = 0, last = 0;
    for (int step = 0; step < 200 && !rp_failed(); step++) {
        rp_scope inner = rp_scope_begin();
        rp_tensor *loss = NULL;
        rp_call(f, (rp_tensor *[]){x, y}, 2, &loss, 1);
        rp_backward(loss, NULL, NULL);
        rp_optimizer_step(adam);
        rp_optimizer_zero_grad(adam, true);
        last = rp_item_f64(loss);
        if (step == 0) first = last;
        rp_scope_end(inner, NULL, 0);
    }
    printf("it learned: %s\n", last < first / 5 ? "yes" : "no");
    rp_compiled_release(f);
    rp_optimizer_release(adam);
    rp_scope_end(scope, NULL, 0);
    return rp_failed() ? (fprintf(stderr, "%s\n", rp_error_message()), 1) : !(last < first / 5);
}
