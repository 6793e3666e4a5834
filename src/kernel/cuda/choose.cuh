/* Decides for a conditional node of a CUDA graph (choose.c), one thread. Macros: RP_NAME RP_WORDS.
 * Words: handle of the node, predicate (a byte), counter (0: none), limit, first. With a counter the answer is yes while the
 * predicate holds and fewer than `limit` decisions came since the one that is `first`. */
typedef struct {
    rp_u64 w[5];
} RP_WORDS;

extern "C" __global__ void __launch_bounds__(1) RP_NAME(const RP_WORDS p) {
    rp_launch_dependents();
    rp_grid_wait();
    rp_u32 go = *(const rp_u8 *)p.w[1] != 0;
    if (p.w[2]) {
        rp_i64 *counter = (rp_i64 *)p.w[2];
        const rp_i64 n = p.w[4] ? 0 : *counter + 1;
        *counter = n;
        go = go && n < (rp_i64)p.w[3];
    }
    rp_set_conditional(p.w[0], go);
}
