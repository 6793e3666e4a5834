/* Training, the plain way: layers, loss, backward, optimizer, every op run as it is called. Two moons of noise become
 * separable: the loss falls. */
#include <reprise_nn.h>
#include <stdio.h>

int main(void) {
    rp_manual_seed(0);
    rp_linear_layer hidden, output;
    rp_linear_layer_init(&hidden, 2, 32, true, RP_F32);
    rp_linear_layer_init(&output, 32, 2, true, RP_F32);
    rp_tensor *params[] = {hidden.weight, hidden.bias, output.weight, output.bias};
    rp_optimizer *adam = rp_adam(params, 4, 0.01, NULL);

    double first = 0, loss = 0;
    for (int step = 0; step < 200; step++) {
        rp_scope scope = rp_scope_begin(); /* everything of this step is gone at its end; parameters are not of it */
        rp_tensor *x = rp_randn(RP_DIMS(64, 2));
        rp_tensor *radius = rp_sum(rp_mul(x, x), RP_DIMS(1));                      /* (64) */
        rp_tensor *label = rp_to_dtype(rp_gt_scalar(radius, rp_f64(1.4)), RP_I64); /* inside or outside of a circle */

        rp_tensor *h = rp_relu(rp_linear_layer_forward(&hidden, x)); /* (64, 32) */
        rp_tensor *logits = rp_linear_layer_forward(&output, h);     /* (64, 2) */
        rp_tensor *l = rp_cross_entropy(logits, label);              /* mean */
        rp_optimizer_zero_grad(adam, true);
        rp_backward(l, NULL, NULL);
        rp_optimizer_step(adam);

        loss = rp_item_f64(l);
        if (step == 0) first = loss;
        if (step % 50 == 0) printf("step %3d  loss %.4f\n", step, loss);
        rp_scope_end(scope, NULL, 0);
    }
    printf("last      loss %.4f\n", loss);

    rp_optimizer_release(adam);
    rp_linear_layer_release(&hidden);
    rp_linear_layer_release(&output);
    if (rp_failed()) printf("%s\n", rp_error_message());
    return rp_failed() || !(loss < 0.6 * first);
}
