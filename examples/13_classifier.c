/* A classifier of small images: module, data set, loader, schedule, evaluation and checkpoints. It may be killed at any moment;
 * started again with the same file it goes on where it was, to the bit: classifier [STATE.safetensors] */
#include <reprise_io.h>
#include <stdio.h>
#include <unistd.h>

enum { ROWS = 512, BATCH = 32, EPOCHS = 4, CLASSES = 4 };

struct net {
    rp_sequential *layers;
    rp_optimizer *opt;
};

static rp_tensor *logits(const struct net *n, rp_tensor *images) { /* (N, 3, 8, 8) uint8 */
    return rp_sequential_forward(n->layers, rp_div_scalar(rp_to_dtype(images, RP_F32), rp_f64(255)));
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
    rp_module *m = rp_module_new("classifier");
    struct net net = {.layers = rp_sequential_add(m, "layers")};
    rp_manual_seed(1);
    /* A pattern for each class, under noise; or rp_cifar_load(paths, 5, 10, ...) */
    rp_tensor *data[2], *patterns = rp_mul_scalar(rp_rand(RP_DIMS(CLASSES, 3 * 8 * 8)), rp_i64(90));
    data[1] = rp_randint(0, CLASSES, RP_DIMS(ROWS));
    data[0] = rp_add(rp_mul_scalar(rp_rand(RP_DIMS(ROWS, 3 * 8 * 8)), rp_i64(160)), rp_embedding(patterns, data[1]));
    data[0] = rp_to_dtype(rp_reshape(data[0], RP_DIMS(ROWS, 3, 8, 8)), RP_U8);
    rp_sequential_conv(net.layers, 3, 16, RP_DIMS(3, 3), RP_OPTIONS(rp_conv_options, .stride = {2, 2}));
    rp_sequential_batch_norm(net.layers, 16, NULL);
    rp_sequential_op(net.layers, "relu");
    rp_sequential_op(net.layers, "flatten(1)");
    rp_sequential_linear(net.layers, 16 * 3 * 3, CLASSES, true);
    net.opt = rp_adamw_module(m, 0.02, NULL);
    rp_schedule *cosine = rp_schedule_cosine(EPOCHS * ROWS / BATCH, 0);
    rp_optimizer_set_schedule(net.opt, cosine);
    rp_loader *loader = rp_loader_new(data, 2, BATCH, RP_OPTIONS(rp_loader_options, .shuffle = true, .workers = 2));
    rp_compiled *f = rp_compile_module(m, (rp_fn){step, &net, sizeof net, "step"}, NULL);
    if (argc > 1 && access(argv[1], R_OK) == 0)
        rp_load(argv[1], m, RP_OPTIONS(rp_load_options, .optimizer = net.opt, .random = true, .loader = loader));
    for (int64_t done = 0; !rp_failed() && rp_loader_position(loader, NULL, &done, NULL) == RP_OK && done < EPOCHS;) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *batch[2], *loss;
        if (rp_loader_next(loader, batch, 2)) rp_call(f, batch, 2, &loss, 1);
        if (argc > 1)
            rp_save(argv[1], m, RP_OPTIONS(rp_save_options, .optimizer = net.opt, .random = true, .loader = loader));
        rp_scope_end(scope, NULL, 0);
    }
    rp_module_set_training(m, false);
    rp_set_grad_enabled(false);
    const int64_t right = rp_item_i64(rp_sum(rp_eq(rp_argmax(logits(&net, data[0]), 1), data[1])));
    printf("%d of %d are right %s\n", (int)right, ROWS, rp_failed() ? rp_error_message() : "");
    rp_compiled_release(f);
    rp_loader_release(loader);
    rp_schedule_release(cosine);
    rp_optimizer_release(net.opt);
    rp_module_release(m);
    return rp_failed() || right < ROWS * 9 / 10;
}
