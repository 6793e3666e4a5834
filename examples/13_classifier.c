/* A classifier of small images: module, data set, loader, schedule, evaluation and checkpoints. It may be killed at any moment;
 * started again with the same file it goes on where it was, to the bit: classifier [STATE.safetensors] */
#include <reprise_io.h>
#include <stdio.h>
#include <unistd.h>

enum { ROWS = 512, BATCH = 32, EPOCHS = 4, CLASSES = 4 };

struct net {
    rp_module *m;
    rp_conv2d_layer conv;
    rp_batch_norm_layer norm;
    rp_linear_layer fc;
    rp_optimizer *opt;
};

static rp_tensor *logits(const struct net *n, rp_tensor *images) { /* (N, 3, 8, 8) uint8 */
    rp_tensor *x = rp_div_scalar(rp_to_dtype(images, RP_F32), rp_f64(255));
    x = rp_relu(rp_batch_norm_layer_forward(&n->norm, rp_conv2d_layer_forward(&n->conv, x)));
    return rp_linear_layer_forward(&n->fc, rp_reshape(x, RP_DIMS(rp_size(x, 0), 16 * 3 * 3)));
}

static void step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct net *n = ctx;
    rp_tensor *loss = rp_cross_entropy(logits(n, in[0]), in[1]);
    (void)n_in, (void)n_out;
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(n->opt);
    rp_optimizer_schedule_step(n->opt);
    rp_optimizer_zero_grad(n->opt, true);
    out[0] = rp_detach(loss);
}

int main(int argc, char **argv) {
    struct net net;
    rp_tensor *data[2], *batch[2], *loss;
    int64_t epoch = 0;
    rp_manual_seed(1);
    rp_tensor *patterns = rp_mul_scalar(rp_rand(RP_DIMS(CLASSES, 3 * 8 * 8)), rp_i64(90)); /* of a class, under noise */
    data[1] = rp_randint(0, CLASSES, RP_DIMS(ROWS));
    data[0] = rp_add(rp_mul_scalar(rp_rand(RP_DIMS(ROWS, 3 * 8 * 8)), rp_i64(160)), rp_embedding(patterns, data[1]));
    data[0] = rp_to_dtype(rp_reshape(data[0], RP_DIMS(ROWS, 3, 8, 8)), RP_U8); /* or rp_cifar_load(paths, 5, 10, ...) */
    net.m = rp_module_new("classifier");
    rp_conv2d_add(net.m, "conv", &net.conv, 3, 16, 3, 3, RP_OPTIONS(rp_conv2d_options, .stride = {2, 2}));
    rp_batch_norm_add(net.m, "norm", &net.norm, 16, NULL);
    rp_linear_add(net.m, "fc", &net.fc, 16 * 3 * 3, CLASSES, true);
    net.opt = rp_adamw_module(net.m, 0.02, NULL);
    rp_schedule *cosine = rp_schedule_cosine(EPOCHS * ROWS / BATCH, 0);
    rp_optimizer_set_schedule(net.opt, cosine);
    rp_loader *loader = rp_loader_new(data, 2, BATCH, RP_OPTIONS(rp_loader_options, .shuffle = true, .workers = 2));
    rp_compiled *f = rp_compile_module(net.m, (rp_fn){step, &net, sizeof net, "step"}, NULL);
    if (argc > 1 && access(argv[1], R_OK) == 0)
        rp_load(argv[1], net.m, RP_OPTIONS(rp_load_options, .optimizer = net.opt, .random = true, .loader = loader));
    while (!rp_failed() && rp_loader_position(loader, NULL, &epoch, NULL) == RP_OK && epoch < EPOCHS) {
        rp_scope scope = rp_scope_begin();
        if (rp_loader_next(loader, batch, 2)) rp_call(f, batch, 2, &loss, 1);
        if (argc > 1)
            rp_save(argv[1], net.m,
                    RP_OPTIONS(rp_save_options, .optimizer = net.opt, .random = true, .loader = loader));
        rp_scope_end(scope, NULL, 0);
    }
    rp_module_set_training(net.m, false);
    rp_set_grad_enabled(false);
    rp_tensor *right = rp_eq(rp_argmax(logits(&net, data[0]), 1), data[1]);
    double accuracy = rp_item_f64(rp_mean(rp_to_dtype(right, RP_F32)));
    printf("accuracy %.4f\n", accuracy);
    if (rp_failed()) printf("%s\n", rp_error_message());
    rp_compiled_release(f);
    rp_loader_release(loader);
    rp_schedule_release(cosine);
    rp_optimizer_release(net.opt);
    rp_module_release(net.m);
    return rp_failed() || !(accuracy > 0.9);
}
