/* Functions and draws of kernel/steps.h, a thread an element. Macros (lib_steps.c): RP_NAME RP_WORDS, RP_T float or double,
 * RP_FUNCTION. Words: out a b, elements, state seed inner, least. */
typedef struct {
    rp_u64 w[8];
} RP_WORDS;

extern "C" __global__ void __launch_bounds__(256) RP_NAME(const RP_WORDS p) {
    const rp_i64 i = (rp_i64)blockIdx.x * 256 + (rp_i64)threadIdx.x;
    rp_launch_dependents();
    rp_grid_wait();
    if (i >= (rp_i64)p.w[3]) return;
    const volatile rp_u64 *s = (const volatile rp_u64 *)p.w[4];
    const rp_u64 seed = s ? s[0] : p.w[5], base = s ? s[1] : 0;
    const double a = (double)((const RP_T *)p.w[1])[i], b = (double)((const RP_T *)p.w[2])[i];
    ((RP_T *)p.w[0])[i] = (RP_T)rp_steps(RP_FUNCTION, a, b, seed, base + p.w[6] + (rp_u64)i, rp_bits_f64(p.w[7]));
}
