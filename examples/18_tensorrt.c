/* TensorRT behind rp_compile: graphs of inference on a GPU. Its library is NVIDIA's and comes from them; where there is none, or no GPU,
   the function runs in fused kernels, and explain says why. */
#include <reprise.h>
#include <stdio.h>
#include <string.h>

static void forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *const *w = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_softmax(rp_linear(rp_relu(rp_linear(in[0], w[0], w[1])), w[2], w[3]), 1);
}

int main(void) {
    rp_scope scope = rp_scope_begin();
    if (rp_device_count(RP_DEVICE_CUDA) > 0) rp_set_default_device(rp_cuda(0));
    rp_manual_seed(1);
    rp_tensor *w[] = {rp_randn(RP_DIMS(64, 32)), rp_randn(RP_DIMS(64)), rp_randn(RP_DIMS(10, 64)),
                      rp_randn(RP_DIMS(10))};
    rp_backend_info info = {.struct_size = sizeof info};
    rp_backend_info_get("tensorrt", &info);
    printf("TensorRT: %s\n", info.available ? info.version : "not here");

    const char *const options[][2] = {{"tf32", "0"}}; /* products in float32 */
    rp_compiled *f =
        rp_compile((rp_fn){forward, w, sizeof w, "net"}, RP_OPTIONS(rp_compile_options, .backend = "tensorrt",
                                                                    .engine_options = options, .n_engine_options = 1));
    rp_tensor *x = rp_randn(RP_DIMS(8, 32)), *y = NULL, *eager[1];
    for (int i = 0; i < 3; i++) rp_call(f, &x, 1, &y, 1);
    forward(w, &x, 1, eager, 1);
    double apart = rp_item_f64(rp_amax(rp_abs(rp_sub(y, eager[0])), RP_NO_DIMS, false));
    printf("as eager: %s\n", apart < 1e-4 ? "yes" : "no");

    rp_explain_entry e;
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_get(f, i, &e);
        if (strcmp(e.kind, "engine") == 0) printf("%s\n", e.message);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    return rp_failed() ? (fprintf(stderr, "%s\n", rp_error_message()), 1) : !(apart < 1e-4);
}
