/* Images from files through a loader into a recorded step: images IMAGES LABELS (IDX as MNIST has it, or .npy), or images CIFAR10.bin.
 * Without arguments it makes two small .npy files first. */
#include <reprise_io.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 512, BATCH = 32, EPOCHS = 4, CLASSES = 10 };

struct net {
    rp_sequential *layers;
    rp_optimizer *opt;
};

static rp_tensor *logits(const struct net *n, rp_tensor *images) { /* (N, C, H, W) uint8 */
    return rp_sequential_forward(n->layers, rp_div_scalar(rp_to_dtype(images, RP_F32), rp_f64(255)));
}

static void step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct net *n = ctx;
    rp_tensor *loss = rp_cross_entropy(logits(n, in[0]), in[1]);
    (void)n_in, (void)n_out;
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(n->opt);
    rp_optimizer_zero_grad(n->opt, true);
    out[0] = rp_detach(loss);
}

/* A pattern for each class, under noise. */
static void make(const char *images, const char *labels) {
    rp_tensor *patterns = rp_mul_scalar(rp_rand(RP_DIMS(CLASSES, 12 * 12)), rp_i64(90));
    rp_tensor *label = rp_randint(0, CLASSES, RP_DIMS(ROWS));
    rp_tensor *image = rp_mul_scalar(rp_rand(RP_DIMS(ROWS, 12 * 12)), rp_i64(160));
    image = rp_to_dtype(rp_add(image, rp_embedding(patterns, label)), RP_U8);
    rp_npy_save(images, rp_reshape(image, RP_DIMS(ROWS, 12, 12)));
    rp_npy_save(labels, label);
}

static rp_tensor *load(const char *path) {
    const size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".npy") == 0 ? rp_npy_load(path) : rp_idx_load(path);
}

int main(int argc, char **argv) {
    rp_module *m = rp_module_new("images");
    struct net net = {.layers = rp_sequential_add(m, "layers")};
    const char *paths[] = {"images.npy", "labels.npy"};
    rp_tensor *data[2];
    rp_manual_seed(1);
    if (argc == 1) make(paths[0], paths[1]);
    for (int k = 1; k < argc && k < 3; k++) paths[k - 1] = argv[k];
    if (argc == 2) {
        rp_cifar_load(paths, 1, CLASSES, &data[0], &data[1]);
    } else {
        data[0] = rp_unsqueeze(load(paths[0]), 1);
        data[1] = rp_to_dtype(load(paths[1]), RP_I64);
    }
    rp_sequential_conv(net.layers, rp_size(data[0], 1), 16, RP_DIMS(3, 3),
                       RP_OPTIONS(rp_conv_options, .stride = {2, 2}));
    rp_sequential_batch_norm(net.layers, 16, NULL);
    rp_sequential_op(net.layers, "relu");
    rp_sequential_op(net.layers, "adaptive_avg_pool2d(4)");
    rp_sequential_op(net.layers, "flatten(1)");
    rp_sequential_linear(net.layers, 16 * 4 * 4, CLASSES, true);
    net.opt = rp_adamw_module(m, 0.01, NULL);
    rp_loader *loader = rp_loader_new(data, 2, BATCH, RP_OPTIONS(rp_loader_options, .shuffle = true, .workers = 2));
    rp_compiled *f = rp_compile_module(m, (rp_fn){step, &net, sizeof net, "step"}, NULL);
    for (int epoch = 0; epoch < EPOCHS && !rp_failed();) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *batch[2], *loss;
        if (rp_loader_next(loader, batch, 2))
            rp_call(f, batch, 2, &loss, 1);
        else
            epoch++;
        rp_scope_end(scope, NULL, 0);
    }
    rp_module_set_training(m, false);
    rp_set_grad_enabled(false);
    rp_tensor *images = rp_slice(data[0], 0, 0, 10000, 1), *labels = rp_slice(data[1], 0, 0, 10000, 1);
    const int64_t right = rp_item_i64(rp_sum(rp_eq(rp_argmax(logits(&net, images), 1), labels)));
    if (rp_failed())
        (void)fprintf(stderr, "%s\n", rp_error_message());
    else
        printf("%lld of %lld are right\n", (long long)right, (long long)rp_size(labels, 0));
    for (int k = 0; k < 2 && argc == 1; k++) (void)remove(paths[k]);
    rp_compiled_release(f);
    rp_loader_release(loader);
    rp_optimizer_release(net.opt);
    rp_module_release(m);
    return rp_failed() || (argc == 1 && right < ROWS * 9 / 10);
}
