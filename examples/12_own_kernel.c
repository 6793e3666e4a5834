/* A kernel of one's own between the library's ops, recorded with them: the launch says which tensors it reads and writes, so a
 * graph can be replayed with another input. rp_cuda_launch does the same with a CUfunction. */
#include <reprise.h>
#include <stdio.h>

/* y = max(x, limit), items [begin, end); the launch cuts [0, items) into slices for its threads. */
static void clamp(const rp_word *params, int64_t begin, int64_t end) {
    const float *x = params[0].data;
    float *y = params[1].data;
    const float limit = params[2].f32;
    for (int64_t i = begin; i < end; i++) {
        y[i] = x[i] > limit ? x[i] : limit;
    }
}

int main(void) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *x =
        rp_arange(rp_i64(-3), rp_i64(5), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)); /* (8,) */
    rp_tensor *other = rp_mul_scalar(x, rp_i64(10));

    rp_graph *g = rp_graph_new();
    rp_graph_begin(g, rp_cpu(), NULL);
    rp_tensor *clamped = rp_empty(RP_DIMS(8));
    rp_launch("clamp", clamp, 8, 4, RP_PARAMS(RP_READS(x), RP_WRITES(clamped), RP_VALUE(f32, -1.5f)));
    rp_tensor *sum = rp_sum(clamped);
    rp_graph_end(g);

    rp_graph_replay(g);
    double first = rp_item_f64(sum);
    rp_graph_repoint(g, x, other); /* the kernel's parameter changes, too */
    rp_graph_replay(g);
    double second = rp_item_f64(sum);
    printf("sum of max(x, -1.5): %g for x = -3 .. 4, %g for x = -30 .. 40\n", first, second);

    rp_graph_release(g);
    rp_scope_end(scope, NULL, 0);
    if (rp_failed()) printf("%s\n", rp_error_message());
    return rp_failed() || first != 6 || second != 95.5;
}
