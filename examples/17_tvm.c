/* TVM behind rp_compile: its compiler is Python's (pip install apache-tvm), its modules run in this process and are kept on disk. Without
   it the function runs in fused kernels, and explain says so. */
#include <reprise.h>
#include <stdio.h>

typedef struct net {
    rp_tensor *w1, *b1, *w2, *b2;
} net;

static void forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *n = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_tanh(rp_linear(in[0], n->w1, n->b1)); /* (B, 16) */
    out[0] = rp_softmax(rp_linear(h, n->w2, n->b2), 1);
}

int main(void) {
    rp_scope scope = rp_scope_begin();
    rp_manual_seed(1);
    net n = {rp_randn(RP_DIMS(16, 4)), rp_randn(RP_DIMS(16)), rp_randn(RP_DIMS(3, 16)), rp_randn(RP_DIMS(3))};
    rp_backend_info info = {.struct_size = sizeof info};
    rp_backend_info_get("tvm", &info);
    printf("TVM: %s\n", info.available ? info.version : "not here");

    const char *const options[][2] = {{"target", "llvm"}, {"seconds", "100"}};
    rp_compiled *f =
        rp_compile((rp_fn){forward, &n, sizeof n, "net"},
                   RP_OPTIONS(rp_compile_options, .backend = "tvm", .engine_options = options, .n_engine_options = 2));
    rp_set_grad_enabled(false);
    rp_tensor *x = rp_randn(RP_DIMS(8, 4)), *y = NULL, *eager[1];
    for (int i = 0; i < 3; i++) rp_call(f, &x, 1, &y, 1);
    forward(&n, &x, 1, eager, 1);
    double apart = rp_item_f64(rp_amax(rp_abs(rp_sub(y, eager[0])), RP_NO_DIMS, false));
    printf("as eager: %s\n", apart < 1e-5 ? "yes" : "no");
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    return rp_failed() ? (fprintf(stderr, "%s\n", rp_error_message()), 1) : !(apart < 1e-5);
}
