/* A text through a loader into a recorded step that learns which byte follows the last eight: text [FILE]. Without a file it writes a
 * small one first. */
#include <reprise_io.h>
#include <stdio.h>

enum { CONTEXT = 8, BATCH = 64, EPOCHS = 2, BYTES = 256, WIDTH = 24 };

struct net {
    rp_embedding_layer embedding;
    rp_linear_layer hidden, out;
    rp_optimizer *opt;
};

static rp_tensor *logits(const struct net *n, rp_tensor *windows) { /* (N, CONTEXT + 1) uint8 */
    rp_tensor *codes = rp_to_dtype(rp_slice(windows, 1, 0, CONTEXT, 1), RP_I64);
    rp_tensor *x = rp_flatten(rp_embedding_layer_forward(&n->embedding, codes), 1, -1);
    return rp_linear_layer_forward(&n->out, rp_gelu(rp_linear_layer_forward(&n->hidden, x)));
}
static rp_tensor *next(rp_tensor *windows) { return rp_to_dtype(rp_select(windows, 1, CONTEXT), RP_I64); }

static void step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct net *n = ctx;
    rp_tensor *loss = rp_cross_entropy(logits(n, in[0]), next(in[0]));
    (void)n_in, (void)n_out;
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(n->opt);
    rp_optimizer_zero_grad(n->opt, true);
    out[0] = rp_detach(loss);
}

static void make(const char *path) {
    FILE *f = fopen(path, "w");
    for (int k = 0; f && k < 150; k++) (void)fputs("the quick brown fox jumps over the lazy dog; ", f);
    if (f) (void)fclose(f);
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "text.txt";
    if (argc == 1) make(path);
    rp_manual_seed(1);
    rp_tensor *windows = rp_unfold(rp_text_load(path), 0, CONTEXT + 1, 1); /* a view of the mapped file */
    rp_module *m = rp_module_new("text");
    struct net net;
    rp_embedding_add(m, "embedding", &net.embedding, BYTES, WIDTH);
    rp_linear_add(m, "hidden", &net.hidden, CONTEXT * WIDTH, 128, true);
    rp_linear_add(m, "out", &net.out, 128, BYTES, true);
    net.opt = rp_adamw_module(m, 0.003, NULL);
    rp_loader *loader = rp_loader_new(&windows, 1, BATCH, RP_OPTIONS(rp_loader_options, .shuffle = true));
    rp_compiled *f = rp_compile_module(m, (rp_fn){step, &net, sizeof net, "step"}, NULL);
    for (int epoch = 0; epoch < EPOCHS && !rp_failed();) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *batch, *loss;
        if (rp_loader_next(loader, &batch, 1))
            rp_call(f, &batch, 1, &loss, 1);
        else
            epoch++;
        rp_scope_end(scope, NULL, 0);
    }
    rp_set_grad_enabled(false);
    windows = rp_slice(windows, 0, 0, 10000, 1);
    const int64_t right = rp_item_i64(rp_sum(rp_eq(rp_argmax(logits(&net, windows), 1), next(windows))));
    const int64_t all = rp_failed() ? 0 : rp_size(windows, 0);
    if (rp_failed())
        (void)fprintf(stderr, "%s\n", rp_error_message());
    else
        printf("%lld of %lld bytes are foretold\n", (long long)right, (long long)all);
    if (argc == 1) (void)remove(path);
    rp_compiled_release(f);
    rp_loader_release(loader);
    rp_optimizer_release(net.opt);
    rp_module_release(m);
    return rp_failed() || (argc == 1 && right < all * 9 / 10);
}
