/* rp_make_graphed_callables: forward and backward of a function become two device graphs. The sample argument is the static
 * input: a call with other tensors copies them in. Gradients reach the parameters as in an eager call. */
#include <reprise_nn.h>
#include <stdio.h>

static void model(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_linear_layer *layer = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_tanh(rp_linear_layer_forward(layer, in[0])); /* (16, 4) */
}

int main(void) {
    rp_manual_seed(0);
    rp_linear_layer layer;
    rp_linear_layer_init(&layer, 8, 4, true, RP_F32);
    rp_tensor *params[] = {layer.weight, layer.bias};
    rp_scope outer = rp_scope_begin();
    rp_tensor *sample = rp_zeros(RP_DIMS(16, 8));

    const rp_graphed_callable callable = {
        .fn = {model, &layer, sizeof layer, "model"},
        .args = &sample,
        .n_args = 1,
        .params = params,
        .n_params = 2,
        .n_out = 1,
    };
    rp_compiled *graphed = NULL;
    if (rp_make_graphed_callables(&callable, 1, RP_OPTIONS(rp_graphed_options, .training = true), &graphed)) {
        printf("%s\n", rp_error_message());
        return 1;
    }
    rp_optimizer *sgd = rp_sgd(params, 2, 0.5, NULL);
    double first = 0, loss = 0;
    for (int step = 0; step < 30; step++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_randn(RP_DIMS(16, 8)), *y = NULL;
        rp_call(graphed, &x, 1, &y, 1);
        rp_tensor *target = rp_tanh(rp_slice(x, 1, 0, 4, 1)); /* the first four inputs */
        rp_tensor *l = rp_mse_loss(y, target, 1);
        rp_optimizer_zero_grad(sgd, true);
        rp_backward(l, NULL, NULL);
        rp_optimizer_step(sgd);
        loss = rp_item_f64(l);
        if (step == 0) first = loss;
        rp_scope_end(scope, NULL, 0);
    }
    printf("loss %.4f, then %.4f\n", first, loss);
    rp_optimizer_release(sgd);
    rp_compiled_release(graphed);
    rp_linear_layer_release(&layer);
    rp_scope_end(outer, NULL, 0);
    if (rp_failed()) printf("%s\n", rp_error_message());
    return rp_failed() || !(loss < first);
}
