/* A whole training step as one recording: forward, backward and optimizer are one compiled function. Step count and learning
 * rate are tensors, so a replay sees changes; gradients are born and dropped inside. The same steps run eagerly beside it. */
#include <math.h>
#include <reprise_nn.h>
#include <stdio.h>

struct net { /* the ctx of the step: compared at every call */
    rp_tensor *params[4];
    rp_optimizer *adam;
};

static void step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct net *net = ctx;
    rp_tensor **p = net->params;
    (void)n_in, (void)n_out;
    rp_tensor *logits = rp_linear(rp_relu(rp_linear(in[0], p[0], p[1])), p[2], p[3]); /* (64, 10) */
    rp_tensor *loss = rp_cross_entropy(logits, in[1]);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(net->adam);
    rp_optimizer_zero_grad(net->adam, true);
    out[0] = rp_detach(loss);
}

static double train(bool compiled) {
    struct net net;
    rp_linear_layer a, b;
    rp_manual_seed(7);
    rp_linear_layer_init(&a, 10, 64, true, RP_F32);
    rp_linear_layer_init(&b, 64, 10, true, RP_F32);
    net.params[0] = a.weight, net.params[1] = a.bias, net.params[2] = b.weight, net.params[3] = b.bias;
    net.adam = rp_adam(net.params, 4, 0.01, NULL);
    rp_fn fn = {step, &net, sizeof net, "step"};
    rp_compiled *f = compiled ? rp_compile(fn, RP_OPTIONS(rp_compile_options, .fullgraph = true)) : rp_plain(fn);
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[] = {rp_randn(RP_DIMS(64, 10)), rp_randint(0, 10, RP_DIMS(64))};
    rp_tensor *loss = NULL;
    for (int i = 0; i < 100 && !rp_failed(); i++) {
        if (i == 50) rp_optimizer_set_lr(net.adam, 0, 0.001); /* a recorded step follows */
        rp_call(f, in, 2, &loss, 1);
        if (i == 0) printf("%s: loss %.4f", compiled ? "recorded" : "eager   ", rp_item_f64(loss));
    }
    double last = rp_failed() ? NAN : rp_item_f64(loss);
    printf(", after 100 steps %.4f\n", last);
    rp_scope_end(scope, NULL, 0);
    rp_compiled_release(f);
    rp_optimizer_release(net.adam);
    rp_linear_layer_release(&a);
    rp_linear_layer_release(&b);
    return last;
}

int main(void) {
    double eager = train(false), recorded = train(true);
    if (rp_failed()) printf("%s\n", rp_error_message());
    return rp_failed() || eager != recorded;
}
