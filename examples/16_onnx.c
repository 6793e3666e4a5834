/* A graph as an ONNX file that others run: sizes that vary, names of arguments and results, call sites in the nodes. */
#include <reprise_io.h>
#include <reprise_ir.h>
#include <stdio.h>

static void classify(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *const *w = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_log_softmax(rp_linear(rp_relu(in[0]), w[0], w[1]), 1);
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "classify.onnx", *const inputs[] = {"pixels"},
               *const outputs[] = {"scores"};
    rp_scope scope = rp_scope_begin();
    rp_tensor *w[2] = {rp_randn(RP_DIMS(10, 784)), rp_zeros(RP_DIMS(10))};
    const rp_ir_type type = {.struct_size = sizeof type,
                             .dtype = RP_F32,
                             .device = rp_cpu(),
                             .ndim = 2,
                             .size = {8, 784},
                             .dynamic = {true}};
    rp_set_grad_enabled(false);
    rp_ir *ir = rp_trace_types((rp_fn){classify, w, sizeof w, "classify"}, &type, 1, 1);
    const rp_named_tensor names[] = {{"fc.weight", w[0]}, {"fc.bias", w[1]}};
    rp_onnx_save(path, ir,
                 RP_OPTIONS(rp_onnx_options, .inputs = inputs, .n_inputs = 1, .outputs = outputs, .n_outputs = 1,
                            .weights = names, .n_weights = 2));
    rp_ir_release(ir);
    rp_scope_end(scope, NULL, 0);
    if (rp_failed()) return fprintf(stderr, "%s\n", rp_error_message()), 1;
    printf("%s: pixels (s0, 784) -> scores (s0, 10)\n", path);
    if (argc < 2) remove(path);
    return 0;
}
