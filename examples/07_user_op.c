/* An op of one's own: squash(x) = x / (1 + |x|), with a CPU function, CUDA source and a derivative. It has a schema like
 * the library's ops, is differentiated, traced and recorded like them, and is called by name. Runs on a GPU where there is one;
 * the source is compiled at the first call. */
#include <math.h>
#include <reprise.h>
#include <stdio.h>

static rp_status squash_cpu(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                            rp_tensor *const *in_tensors, rp_tensor *const *out_tensors, const rp_attr *attrs,
                            size_t n_attrs) {
    const float *x = in[0];
    float *y = out[0];
    (void)ctx, (void)n_in, (void)n_out, (void)out_tensors, (void)attrs, (void)n_attrs;
    for (int64_t i = 0; i < rp_numel(in_tensors[0]); i++) {
        y[i] = x[i] / (1 + fabsf(x[i]));
    }
    return RP_OK;
}

/* d/dx x / (1 + |x|) = 1 / (1 + |x|)^2, written with ops, so that it has a derivative as well. */
static rp_status squash_backward(void *ctx, rp_tensor *const *grad_out, size_t n_out, rp_tensor *const *in, size_t n_in,
                                 rp_tensor *const *out, const rp_attr *attrs, size_t n_attrs, rp_tensor **grad_in) {
    (void)ctx, (void)n_out, (void)n_in, (void)out, (void)attrs, (void)n_attrs;
    rp_tensor *d = rp_add_scalar(rp_abs(in[0]), rp_i64(1));
    grad_in[0] = rp_div(grad_out[0], rp_mul(d, d));
    return rp_failed() ? rp_error_status() : RP_OK;
}

static const char *squash_cuda = "extern \"C\" __global__ void squash(const float *x, float *y, long long n) {\n"
                                 "    long long i = blockIdx.x * 256LL + threadIdx.x;\n"
                                 "    if (i < n) y[i] = x[i] / (1 + (x[i] < 0 ? -x[i] : x[i]));\n"
                                 "}\n";

int main(void) {
    const rp_op_descriptor descriptor = {
        .struct_size = sizeof descriptor,
        .schema = "squash(Tensor self) -> Tensor",
        .doc = "self / (1 + |self|)",
        .cpu = squash_cpu,
        .cuda_source = squash_cuda,
        .cuda_entry = "squash",
        .backward = squash_backward,
    };
    rp_op_register(&descriptor);
    rp_set_default_device(rp_device_available(rp_cuda(0)) ? rp_cuda(0) : rp_cpu());
    rp_scope scope = rp_scope_begin();
    const float numbers[] = {-3, -1, 0, 1, 3};
    rp_tensor *x = rp_from_data(numbers, RP_DIMS(5), RP_F32), *y = NULL;
    rp_set_requires_grad(x, true);
    rp_op_call("squash", &x, 1, NULL, 0, &y, 1);
    rp_backward(rp_sum(y), NULL, NULL);

    float value[5] = {0}, grad[5] = {0};
    rp_to_host(y, value, sizeof value);
    rp_to_host(rp_grad_of(x), grad, sizeof grad);
    for (int i = 0; i < 5; i++) {
        printf("squash(%g) = %g, derivative %g\n", numbers[i], value[i], grad[i]);
    }
    rp_scope_end(scope, NULL, 0);
    if (rp_failed()) printf("%s\n", rp_error_message());
    return rp_failed() || value[4] != 0.75f || grad[4] != 0.0625f;
}
