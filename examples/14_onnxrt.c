/* ONNX Runtime behind rp_compile: the same function, another engine. Where its library is not here (pip install onnxruntime, or
   REPRISE_ONNXRUNTIME), the function runs in fused kernels, and explain says so. */
#include <reprise.h>
#include <stdio.h>

typedef struct net {
    rp_tensor *w1, *b1, *w2, *b2;
} net;

static void forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *n = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_gelu(rp_linear(in[0], n->w1, n->b1)); /* (B, 64) */
    out[0] = rp_softmax(rp_linear(h, n->w2, n->b2), 1);
}

int main(void) {
    rp_scope scope = rp_scope_begin();
    rp_manual_seed(1);
    net n = {rp_randn(RP_DIMS(64, 32)), rp_randn(RP_DIMS(64)), rp_randn(RP_DIMS(10, 64)), rp_randn(RP_DIMS(10))};
    rp_backend_info info = {.struct_size = sizeof info};
    rp_backend_info_get("onnxrt", &info);
    printf("ONNX Runtime: %s\n", info.available ? info.version : "not here");

    const char *const options[][2] = {{"threads", "1"}};
    rp_compiled *f =
        rp_compile((rp_fn){forward, &n, sizeof n, "net"}, RP_OPTIONS(rp_compile_options, .backend = "onnxrt",
                                                                     .engine_options = options, .n_engine_options = 1));
    rp_set_grad_enabled(false);
    rp_tensor *x = rp_randn(RP_DIMS(8, 32)), *y = NULL, *eager[1];
    for (int i = 0; i < 3; i++) rp_call(f, &x, 1, &y, 1);
    forward(&n, &x, 1, eager, 1);
    printf("as eager: %s\n",
           rp_item_f64(rp_amax(rp_abs(rp_sub(y, eager[0])), RP_NO_DIMS, false)) < 1e-5 ? "yes" : "no");

    rp_explain_entry e;
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_get(f, i, &e);
        if (e.kind[0] == 'e' || e.kind[0] == 's') printf("%s: %s\n", e.kind, e.message);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    return rp_failed() ? (fprintf(stderr, "%s\n", rp_error_message()), 1) : 0;
}
