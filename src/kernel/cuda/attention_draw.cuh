/* Random numbers of attention weights (attention.c). RP_PART 0: the place of an op's numbers, words: out, state seed inner; one thread.
 * RP_PART 1: which weights stay, words: keep (bool), place, number of weights, probability (f64). Four weights a thread: a counter's. */
typedef struct {
    rp_u64 w[4];
} RP_WORDS;

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    const rp_i64 i = (rp_i64)blockIdx.x * 256 + (rp_i64)threadIdx.x;
    rp_launch_dependents();
    rp_grid_wait();
#if RP_PART == 0
    const volatile rp_u64 *state = (const volatile rp_u64 *)p.w[1];
    rp_u64 *out = (rp_u64 *)p.w[0];
    if (i != 0) return;
    out[0] = state ? state[0] : p.w[2];
    out[1] = (state ? state[1] : 0) + p.w[3];
#else
    const rp_u64 *place = (const rp_u64 *)p.w[1];
    rp_u8 *out = (rp_u8 *)p.w[0];
    rp_u32 x[4];
    if (4 * i >= (rp_i64)p.w[2]) return;
    rp_philox(place[0], place[1] + (rp_u64)i, x);
    for (int k = 0; k < 4 && 4 * i + k < (rp_i64)p.w[2]; k++)
        out[4 * i + k] = (float)(x[k] >> 8) * rp_bits_f32(0x33800000u) < (float)rp_bits_f64(p.w[3]);
#endif
}
