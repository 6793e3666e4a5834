/* rp_graph_*: what a stream is given between begin and end is recorded instead of run, whoever launches it, and replay plays
 * it back over the memory that was recorded. On a CPU the same calls record the same way. */
#include <reprise.h>
#include <stdio.h>

int main(void) {
    rp_device device = rp_device_available(rp_cuda(0)) ? rp_cuda(0) : rp_cpu();
    rp_set_default_device(device);
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_full(RP_DIMS(4), rp_f64(1));
    rp_tensor *warm = rp_mul(rp_add_scalar(x, rp_i64(1)), x); /* compiles what is not to be compiled in a capture */
    (void)warm;

    rp_graph *graph = rp_graph_new();
    rp_tensor *y = NULL;
    if (!rp_graph_begin(graph, device, NULL)) {
        y = rp_mul(rp_add_scalar(x, rp_i64(1)), x); /* (x + 1) x: nothing is computed here */
        rp_graph_end(graph);
    }
    for (int k = 1; k <= 3 && !rp_failed(); k++) {
        rp_fill_(x, rp_i64(k)); /* the graph reads x where it lies */
        rp_graph_replay(graph);
        printf("x = %d: (x + 1) x = %g\n", k, rp_item_f64(rp_select(y, 0, 0)));
        if (rp_item_f64(rp_select(y, 0, 0)) != k * (k + 1)) return 1;
    }
    /* The same recording over other memory: the nodes that read x are pointed at z. */
    rp_tensor *z = rp_full(RP_DIMS(4), rp_f64(10));
    if (!rp_graph_repoint(graph, x, z)) {
        rp_graph_replay(graph);
        printf("z = 10: (z + 1) z = %g\n", rp_item_f64(rp_select(y, 0, 3)));
    }
    rp_graph_release(graph);
    rp_scope_end(scope, NULL, 0);
    if (rp_failed()) printf("%s\n", rp_error_message());
    return rp_failed();
}
