/* The CUDA prelude: every intrinsic, PTX instruction and math function that an emitted kernel may use, as functions
 * with plain C types. It is put before the emitted text between the lines rp-prelude begin and rp-prelude end, needs no
 * header, and is the only place with inline PTX. tests/cudasim/prelude.h implements the same names on the CPU; a test
 * compiles every name of the list below with both and refuses a name that one of them has and the list has not. Kernels
 * use CUDA's own words for the rest: __global__, __device__, __shared__, extern __shared__, __launch_bounds__, __cluster_dims__,
 * __forceinline__, threadIdx, blockIdx, blockDim, gridDim. Compile with --fmad=false: a product and a sum contract only
 * where rp_fma_* is written.
 *
 * Types: rp_i8 rp_u8 rp_i16 rp_u16 rp_i32 rp_u32 rp_i64 rp_u64; rp_f32x2 rp_f32x4 rp_f64x2 rp_i32x4 rp_u32x2 rp_u32x4
 * rp_i64x2 rp_u64x2, structs of members x y z w aligned to their size. f16 and bf16 are bits in an rp_u16. Constant:
 * rp_warp_size (32).
 *
 * [functions]
 * block and warp (every thread of the block or warp calls; none has returned):
 *   rp_barrier() rp_warp_sync() rp_lane()
 *   rp_ballot(pred) rp_any(pred) rp_all(pred)
 *   rp_shfl_xor_T(v, lane_mask, width) rp_shfl_down_T(v, delta, width) rp_shfl_up_T(v, delta, width) rp_shfl_idx_T(v,
 *   lane, width):
 *   rp_shfl_xor_f32 rp_shfl_xor_f64 rp_shfl_xor_i32 rp_shfl_xor_u32 rp_shfl_xor_i64 rp_shfl_xor_u64
 *   rp_shfl_down_f32 rp_shfl_down_f64 rp_shfl_down_i32 rp_shfl_down_u32 rp_shfl_down_i64 rp_shfl_down_u64
 *   rp_shfl_up_f32 rp_shfl_up_f64 rp_shfl_up_i32 rp_shfl_up_u32 rp_shfl_up_i64 rp_shfl_up_u64
 *   rp_shfl_idx_f32 rp_shfl_idx_f64 rp_shfl_idx_i32 rp_shfl_idx_u32 rp_shfl_idx_i64 rp_shfl_idx_u64
 * grid (rp_grid_wait: before the first access to what a predecessor writes or reads; rp_launch_dependents: a hint):
 *   rp_grid_wait() rp_launch_dependents() rp_clock_ns()
 *   rp_set_conditional(handle, value): only with RP_PRELUDE_CONDITIONAL defined before the prelude
 *   rp_threadfence_block() rp_threadfence() rp_threadfence_system()
 *   rp_ld_acquire_u32(p) rp_st_release_u32(p, v) rp_ld_acquire_sys_u32(p) rp_st_release_sys_u32(p, v) rp_spin_pause()
 * cluster of n blocks, neighbours along x (sm_90; the kernel says __cluster_dims__(n, 1, 1)), of which every thread calls:
 *   rp_cluster_barrier(n) rp_cluster_done(n): all have come here, having read what others have in shared memory; makes nothing visible
 *   rp_cluster_read_f32(p, rank, n): what block `rank` of the cluster has where this one has the shared variable *p
 *   rp_cluster_read_f64 rp_cluster_read_i32 rp_cluster_read_i64 rp_cluster_read_v4_f32
 *   rp_cluster_write_f32(p, v, rank, n): that there becomes v, seen by all behind the next barrier
 *   rp_cluster_write_f64
 * atomics on device memory, relaxed; they return the old value; f32/f64 max and min propagate NaN:
 *   rp_atomic_add_f32 rp_atomic_add_f64 rp_atomic_add_i32 rp_atomic_add_u32 rp_atomic_add_i64 rp_atomic_add_u64
 *   rp_atomic_add_f16 rp_atomic_add_bf16
 *   rp_atomic_max_f32 rp_atomic_max_f64 rp_atomic_max_i32 rp_atomic_max_u32 rp_atomic_max_i64 rp_atomic_max_u64
 *   rp_atomic_min_f32 rp_atomic_min_f64 rp_atomic_min_i32 rp_atomic_min_u32 rp_atomic_min_i64 rp_atomic_min_u64
 *   rp_atomic_cas_u32(p, compare, value) rp_atomic_cas_u64 rp_atomic_exch_u32(p, value) rp_atomic_exch_u64
 *   rp_atomic_or_u32 rp_atomic_and_u32 rp_atomic_xor_u32
 *   rp_atomic_inc_u32(p, last): old; *p becomes old >= last ? 0 : old + 1 (a ticket that resets itself)
 * the same without the old value, on global memory: nothing waits for them. f16 and bf16 are added within the aligned word that they lie in,
 * to whose other half -0 is added:
 *   rp_red_add_f32 rp_red_add_f64 rp_red_add_i32 rp_red_add_u32 rp_red_add_i64 rp_red_add_u64 rp_red_add_f16 rp_red_add_bf16
 *   rp_red_max_f32 rp_red_max_f64 rp_red_max_i32 rp_red_max_u32 rp_red_max_i64 rp_red_max_u64
 *   rp_red_min_f32 rp_red_min_f64 rp_red_min_i32 rp_red_min_u32 rp_red_min_i64 rp_red_min_u64
 * memory; _v: one access, aligned to its size; _nc: read-only path, never for what a predecessor writes:
 *   rp_ld_nc_f32 rp_ld_nc_f64 rp_ld_nc_i32 rp_ld_nc_u32 rp_ld_nc_i64 rp_ld_nc_u64 rp_ld_nc_u16 rp_ld_nc_u8
 *   rp_ld_nc_v4_f32 rp_ld_nc_v4_u32 rp_ld_nc_v2_f64
 *   rp_ld_v2_f32 rp_ld_v4_f32 rp_ld_v2_f64 rp_ld_v4_i32 rp_ld_v2_u32 rp_ld_v4_u32 rp_ld_v2_i64 rp_ld_v2_u64
 *   rp_st_v2_f32 rp_st_v4_f32 rp_st_v2_f64 rp_st_v4_i32 rp_st_v2_u32 rp_st_v4_u32 rp_st_v2_i64 rp_st_v2_u64
 *   rp_st_v8(void *, const void *): eight words of 4 bytes at a multiple of 16; where neighbours in a warp store neighbours, whole sectors of 32 bytes
 *   rp_prefetch_l2(p) rp_opaque(p: what it was made of is forgotten, so that an offset is added to it in one instruction)
 *   rp_cp_async_4(shared, global) rp_cp_async_8 rp_cp_async_16 rp_cp_async_16_zfill(shared, global, bytes: the rest is
 *   zero) rp_cp_async_4_zfill rp_cp_async_8_zfill
 *   rp_cp_async_commit() rp_cp_async_wait(n: groups that may still be in flight, a constant 0..7)
 * conversions (round to nearest even; NaN stays NaN; float to integer truncates, saturates, NaN gives 0):
 *   rp_cvt_f16_to_f32 rp_cvt_f32_to_f16 rp_cvt_bf16_to_f32 rp_cvt_f32_to_bf16 rp_cvt_f32_to_tf32(x): bits, rounded
 *   half away; 13 of them are left that no instruction reads rp_cvt_f32_to_tf32_even(x): half to even, as bulk copies round
 *   rp_cvt_f32_to_f16x2(low, high): both in a u32 rp_cvt_f32_to_bf16x2
 *   rp_cvt_f16x2_to_f32(two, high: 0 or 1) rp_cvt_bf16x2_to_f32
 *   rp_round_f32_to_f16(x): to the nearest f16, as an f32 rp_round_f32_to_bf16
 *   rp_cvt_f32_to_i32 rp_cvt_f32_to_i64 rp_cvt_f64_to_i32 rp_cvt_f64_to_i64
 * bits (bits_f32: bits to float, f32_bits: float to bits):
 *   rp_neg_i32 rp_bits_f32 rp_f32_bits rp_bits_f64 rp_f64_bits rp_mulhi_u32 rp_mulhi_u64 rp_clz rp_clz_u64 rp_popc rp_popc_u64
 *   rp_brev_u32
 * math, each for f32 and f64 (min and max propagate NaN; fmin and fmax drop it):
 *   rp_fma_f32 rp_fma_f64 rp_exp_f32 rp_exp_f64 rp_exp2_f32 rp_exp2_f64 rp_expm1_f32 rp_expm1_f64 rp_log_f32 rp_log_f64
 *   rp_log2_f32 rp_log2_f64 rp_log10_f32 rp_log10_f64 rp_log1p_f32 rp_log1p_f64 rp_sin_f32 rp_sin_f64 rp_cos_f32
 *   rp_cos_f64
 *   rp_tan_f32 rp_tan_f64 rp_asin_f32 rp_asin_f64 rp_acos_f32 rp_acos_f64 rp_atan_f32 rp_atan_f64 rp_sinh_f32
 *   rp_sinh_f64
 *   rp_cosh_f32 rp_cosh_f64 rp_tanh_f32 rp_tanh_f64 rp_asinh_f32 rp_asinh_f64 rp_acosh_f32 rp_acosh_f64 rp_atanh_f32
 *   rp_atanh_f64
 *   rp_erf_f32 rp_erf_f64 rp_erfc_f32 rp_erfc_f64 rp_erfinv_f32 rp_erfinv_f64
 *   rp_lgamma_f32 rp_lgamma_f64 rp_tgamma_f32 rp_tgamma_f64
 *   rp_sqrt_f32 rp_sqrt_f64 rp_rsqrt_f32 rp_rsqrt_f64 rp_cbrt_f32 rp_cbrt_f64 rp_floor_f32 rp_floor_f64 rp_ceil_f32
 *   rp_ceil_f64
 *   rp_trunc_f32 rp_trunc_f64 rp_rint_f32 rp_rint_f64 rp_round_f32 rp_round_f64 rp_fabs_f32 rp_fabs_f64
 *   rp_pow_f32 rp_pow_f64 rp_fmod_f32 rp_fmod_f64 rp_atan2_f32 rp_atan2_f64 rp_hypot_f32 rp_hypot_f64
 *   rp_copysign_f32 rp_copysign_f64 rp_fmin_f32 rp_fmin_f64 rp_fmax_f32 rp_fmax_f64 rp_min_f32 rp_min_f64 rp_max_f32
 *   rp_max_f64
 *   rp_isnan_f32 rp_isnan_f64 rp_isinf_f32 rp_isinf_f64 rp_isfinite_f32 rp_isfinite_f64
 *   rp_sincos_f32(x, &s, &c) rp_sincos_f64
 *   rp_exp2_approx_f32(x): within 2 ulp, subnormal results may be 0
 *   rp_recip_approx_f32(x) rp_rsqrt_approx_f32(x) rp_div_approx_f32(a, b): within 2 ulp
 * tensor cores, one warp, fragments as PTX lays them out; d += a * b:
 *   rp_mma_m16n8k8_tf32(float d[4], const u32 a[4], const u32 b[2])
 *   rp_mma_m16n8k16_f16(float d[4], const u32 a[4], const u32 b[2]) rp_mma_m16n8k16_bf16
 *   rp_mma_m16n8k32_i8(i32 d[4], const u32 a[4], const u32 b[2]): wraps
 *   rp_ldmatrix_x2(u32 r[2], row) rp_ldmatrix_x4(u32 r[4], row) rp_ldmatrix_x2_trans rp_ldmatrix_x4_trans
 *   rp_stmatrix_x4(row, u32 r[4]) rp_stmatrix_x4_trans: the other way round
 * tensor cores, four warps, numbers 4 i to 4 i + 3 of the block, the same instructions in the same order (devices of 9.0 alone; only with
 * RP_PRELUDE_WGMMA defined before the prelude, as nvrtc.c does for a text that has one of these): d of 64 x N += or = a of 64 x 16 times b
 * of 16 x N. Warp w has rows 16 w on: d[4 j + v] is at row lane / 4 + v / 2 * 8, column 8 j + lane % 4 * 2 + v % 2; `a` in registers (_ra)
 * lies as in mma_m16n8k16. Operands in shared memory are described by rp_wgmma_desc; accumulate 0: d is not read; across_a, across_b
 * (constants): rows of the operand (columns of b) run fastest there, not K.
 *   rp_wgmma_desc(p, leading, stride, swizzle 0, 32, 64 or 128): p in dynamic shared memory, bytes, all multiples of 16; + bytes / 16: p
 *   that much further. Let c be pieces of 16 bytes, 8 elements, and s = swizzle / 16 (0: 1), rows those of a or columns of b; then
 *   (row, K) lies, K fastest, at row % 8 * 16 s + row / 8 * stride + (s > 1: 16, else leading) * c of K, s >= 2: K in one row of s;
 *   rows fastest, at (c of rows) % s * 16 + (c of rows) / s * leading + K % 8 * 16 s + K / 8 * stride, and without swizzle at
 *   (c of rows) * stride + K % 8 * 16 + K / 8 * leading; of each address, counted from a multiple of 1024, bits 7.. are then xored
 *   to bits 4..: three, two, one of them
 *   rp_wgmma_fence() before the first one, and where d or a were written since; rp_wgmma_commit() ends a group; rp_wgmma_wait(n: groups
 *   that may still be in flight, a constant 0..7); rp_wgmma_hold(d, n): behind it, d is not read, nor written, earlier than here
 *   rp_fence_proxy_async(): what the thread has stored to shared memory is there for matrices; then a barrier
 *   rp_mbarrier_init(u64 *, arrivals) of shared memory, one thread, then rp_barrier; arrivals that many end a phase, the first is 0:
 *   rp_mbarrier_ready(): behind the last of them, where bulk copies come to one;
 *   rp_mbarrier_arrive(u64 *), what the thread did before is seen by those that wait; rp_mbarrier_arrive_copied(u64 *): once the thread's
 *   cp_async have come; rp_mbarrier_wait(u64 *, p): a phase of parity p has ended, and one of the other parity has not since;
 *   rp_mbarrier_expect(u64 *, bytes): arrives, and the phase lasts until bulk copies have brought so many bytes
 *   rp_elect(): 1 for one thread of a warp, of which all call it
 * bulk copies, by one thread, of what a tensor map (16 words at a multiple of 64 bytes of a parameter that is a __grid_constant__; tensor_map.h)
 * says, to shared memory at a multiple of 128, swizzled of 1024:
 *   rp_bulk_prefetch(map): it will be used
 *   rp_bulk_tile(to, map, u64 *barrier, x, y, z): a box of three dims, at these elements; zeros outside
 *   rp_bulk_pixels(to, map, u64 *barrier, spatial 1 to 3, c, const int at[], n, const int tap[]): channels from c on of so many places of a
 *   window, which begin at place `at` of picture n, each `tap` further; outermost dim first, zeros outside
 *   rp_registers_give(n: a constant 24, 32 or 40) rp_registers_take(n: 104, 112, .. 240): from here on a thread of these four warps has n
 *   registers, fewer or more than before; together never more than the block began with
 *   rp_wgmma_n8_f16 rp_wgmma_n8_bf16 rp_wgmma_n8_f16_ra rp_wgmma_n8_bf16_ra
 *   rp_wgmma_n16_f16 rp_wgmma_n16_bf16 rp_wgmma_n16_f16_ra rp_wgmma_n16_bf16_ra
 *   rp_wgmma_n32_f16 rp_wgmma_n32_bf16 rp_wgmma_n32_f16_ra rp_wgmma_n32_bf16_ra
 *   rp_wgmma_n48_f16 rp_wgmma_n48_bf16 rp_wgmma_n48_f16_ra rp_wgmma_n48_bf16_ra
 *   rp_wgmma_n64_f16 rp_wgmma_n64_bf16 rp_wgmma_n64_f16_ra rp_wgmma_n64_bf16_ra
 *   rp_wgmma_n80_f16 rp_wgmma_n80_bf16 rp_wgmma_n80_f16_ra rp_wgmma_n80_bf16_ra
 *   rp_wgmma_n96_f16 rp_wgmma_n96_bf16 rp_wgmma_n96_f16_ra rp_wgmma_n96_bf16_ra
 *   rp_wgmma_n128_f16 rp_wgmma_n128_bf16 rp_wgmma_n128_f16_ra rp_wgmma_n128_bf16_ra
 *   rp_wgmma_n160_f16 rp_wgmma_n160_bf16 rp_wgmma_n160_f16_ra rp_wgmma_n160_bf16_ra
 *   rp_wgmma_n176_f16 rp_wgmma_n176_bf16 rp_wgmma_n176_f16_ra rp_wgmma_n176_bf16_ra
 *   rp_wgmma_n192_f16 rp_wgmma_n192_bf16 rp_wgmma_n192_f16_ra rp_wgmma_n192_bf16_ra
 *   rp_wgmma_n256_f16 rp_wgmma_n256_bf16 rp_wgmma_n256_f16_ra rp_wgmma_n256_bf16_ra
 * and of f32 as tf32, eight of K, both in shared memory, K fastest in both (a piece is four elements); _ra: the first factor as in mma_m16n8k8:
 *   rp_wgmma_n8_tf32(d, a, b, accumulate) rp_wgmma_n32_tf32 rp_wgmma_n64_tf32 rp_wgmma_n96_tf32 rp_wgmma_n128_tf32 rp_wgmma_n192_tf32
 *   rp_wgmma_n256_tf32 rp_wgmma_n8_tf32_ra rp_wgmma_n32_tf32_ra rp_wgmma_n64_tf32_ra rp_wgmma_n96_tf32_ra rp_wgmma_n128_tf32_ra
 *   rp_wgmma_n192_tf32_ra rp_wgmma_n256_tf32_ra
 * [end]
 */
#define RP_FN static __device__ __forceinline__

typedef signed char rp_i8;
typedef unsigned char rp_u8;
typedef short rp_i16;
typedef unsigned short rp_u16;
typedef int rp_i32;
typedef unsigned int rp_u32;
typedef long long rp_i64;
typedef unsigned long long rp_u64;
typedef struct __align__(8) rp_f32x2 {
    float x, y;
}
rp_f32x2;
typedef struct __align__(16) rp_f32x4 {
    float x, y, z, w;
}
rp_f32x4;
typedef struct __align__(16) rp_f64x2 {
    double x, y;
}
rp_f64x2;
typedef struct __align__(16) rp_i32x4 {
    int x, y, z, w;
}
rp_i32x4;
typedef struct __align__(8) rp_u32x2 {
    unsigned int x, y;
}
rp_u32x2;
typedef struct __align__(16) rp_u32x4 {
    unsigned int x, y, z, w;
}
rp_u32x4;
typedef struct __align__(16) rp_i64x2 {
    long long x, y;
}
rp_i64x2;
typedef struct __align__(16) rp_u64x2 {
    unsigned long long x, y;
}
rp_u64x2;
#define rp_warp_size 32
#define RP__FULL 0xffffffffu

/* ---- Block and warp ---- */

RP_FN void rp_barrier(void) { __syncthreads(); }
RP_FN void rp_warp_sync(void) { __syncwarp(RP__FULL); }
RP_FN rp_u32 rp_lane(void) {
    rp_u32 lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
RP_FN rp_u32 rp_ballot(int pred) { return __ballot_sync(RP__FULL, pred); }
RP_FN int rp_any(int pred) { return __any_sync(RP__FULL, pred); }
RP_FN int rp_all(int pred) { return __all_sync(RP__FULL, pred); }
#define RP__SHUFFLES(T, type)                                                                                          \
    RP_FN type rp_shfl_xor_##T(type v, int lane_mask, int width) {                                                     \
        return __shfl_xor_sync(RP__FULL, v, lane_mask, width);                                                         \
    }                                                                                                                  \
    RP_FN type rp_shfl_down_##T(type v, rp_u32 delta, int width) {                                                     \
        return __shfl_down_sync(RP__FULL, v, delta, width);                                                            \
    }                                                                                                                  \
    RP_FN type rp_shfl_up_##T(type v, rp_u32 delta, int width) { return __shfl_up_sync(RP__FULL, v, delta, width); }   \
    RP_FN type rp_shfl_idx_##T(type v, int lane, int width) { return __shfl_sync(RP__FULL, v, lane, width); }
RP__SHUFFLES(f32, float)
RP__SHUFFLES(f64, double)
RP__SHUFFLES(i32, rp_i32)
RP__SHUFFLES(u32, rp_u32)
RP__SHUFFLES(i64, rp_i64)
RP__SHUFFLES(u64, rp_u64)

/* ---- Grid ---- */

/* No library defines this one: the driver resolves it when it loads the module. Declared only where it is called, since
 * a module with the reference asks the loader for it. */
#ifdef RP_PRELUDE_CONDITIONAL
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);
RP_FN void rp_set_conditional(rp_u64 handle, rp_u32 value) { cudaGraphSetConditional(handle, value); }
#endif
#if __CUDA_ARCH__ >= 900
RP_FN void rp_grid_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }
RP_FN void rp_launch_dependents(void) { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else /* before Hopper a grid starts when its predecessors are complete */
RP_FN void rp_grid_wait(void) {}
RP_FN void rp_launch_dependents(void) {}
#endif
RP_FN rp_u64 rp_clock_ns(void) {
    rp_u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
RP_FN void rp_threadfence_block(void) { __threadfence_block(); }
RP_FN void rp_threadfence(void) { __threadfence(); }
RP_FN void rp_threadfence_system(void) { __threadfence_system(); }
RP_FN rp_u32 rp_ld_acquire_u32(const rp_u32 *p) {
    rp_u32 v;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
RP_FN void rp_st_release_u32(rp_u32 *p, rp_u32 v) {
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
RP_FN rp_u32 rp_ld_acquire_sys_u32(const rp_u32 *p) {
    rp_u32 v;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
RP_FN void rp_st_release_sys_u32(rp_u32 *p, rp_u32 v) {
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
RP_FN void rp_spin_pause(void) { __nanosleep(32); }

/* ---- Bits and conversions ---- */

RP_FN float rp_bits_f32(rp_u32 b) { return __uint_as_float(b); }
/* As a complement and one: of the largest of three negated numbers ptxas 13.0 makes one instruction for 9.0 and loses a sign. */
RP_FN rp_i32 rp_neg_i32(rp_i32 x) {
    rp_i32 y;
    asm("{\n.reg .b32 t;\nnot.b32 t, %1;\nadd.s32 %0, t, 1;\n}" : "=r"(y) : "r"(x));
    return y;
}
RP_FN rp_u32 rp_f32_bits(float x) { return __float_as_uint(x); }
RP_FN double rp_bits_f64(rp_u64 b) { return __longlong_as_double((long long)b); }
RP_FN rp_u64 rp_f64_bits(double x) { return (rp_u64)__double_as_longlong(x); }
RP_FN rp_u32 rp_mulhi_u32(rp_u32 a, rp_u32 b) { return __umulhi(a, b); }
RP_FN rp_u64 rp_mulhi_u64(rp_u64 a, rp_u64 b) { return __umul64hi(a, b); }
RP_FN int rp_clz(rp_u32 v) { return __clz((int)v); }
RP_FN int rp_clz_u64(rp_u64 v) { return __clzll((long long)v); }
RP_FN int rp_popc(rp_u32 v) { return __popc(v); }
RP_FN int rp_popc_u64(rp_u64 v) { return __popcll(v); }
RP_FN rp_u32 rp_brev_u32(rp_u32 v) { return __brev(v); }
RP_FN float rp_cvt_f16_to_f32(rp_u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
RP_FN rp_u16 rp_cvt_f32_to_f16(float x) {
    rp_u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
RP_FN float rp_cvt_bf16_to_f32(rp_u16 h) { return __uint_as_float((rp_u32)h << 16); }
/* On Hopper the single form is an instruction of the slow unit that computes exponentials, the pair is not. */
#if __CUDA_ARCH__ >= 800
RP_FN rp_u32 rp_cvt_f32_to_f16x2(float low, float high) {
    rp_u32 two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
RP_FN rp_u32 rp_cvt_f32_to_bf16x2(float low, float high) {
    rp_u32 two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
#else
RP_FN rp_u32 rp_cvt_f32_to_f16x2(float low, float high) {
    return (rp_u32)rp_cvt_f32_to_f16(high) << 16 | rp_cvt_f32_to_f16(low);
}
RP_FN rp_u32 rp__bf16_bits(float x) {
    const rp_u32 b = __float_as_uint(x);
    return x == x ? (b + 0x7fffu + (b >> 16 & 1)) >> 16 : 0x7fffu;
}
RP_FN rp_u32 rp_cvt_f32_to_bf16x2(float low, float high) { return rp__bf16_bits(high) << 16 | rp__bf16_bits(low); }
#endif
RP_FN float rp_cvt_f16x2_to_f32(rp_u32 two, int high) { return rp_cvt_f16_to_f32((rp_u16)(high ? two >> 16 : two)); }
RP_FN float rp_cvt_bf16x2_to_f32(rp_u32 two, int high) { return rp_bits_f32(high ? two & 0xffff0000u : two << 16); }
RP_FN rp_u16 rp_cvt_f32_to_bf16(float x) { return (rp_u16)rp_cvt_f32_to_bf16x2(x, 0); }
RP_FN float rp_round_f32_to_f16(float x) { return rp_cvt_f16_to_f32(rp_cvt_f32_to_f16(x)); }
RP_FN float rp_round_f32_to_bf16(float x) { return rp_bits_f32(rp_cvt_f32_to_bf16x2(0, x)); }
/* The instruction of 9.0 (cvt.rn.tf32) runs at a quarter of the rate of a plain one. */
RP_FN rp_u32 rp_cvt_f32_to_tf32(float x) {
    const rp_u32 bits = __float_as_uint(x);
    return x == x ? bits + 0x1000u : 0x7fffffffu;
}
RP_FN rp_u32 rp_cvt_f32_to_tf32_even(float x) {
    const rp_u32 bits = __float_as_uint(x);
    return x == x ? bits + 0xfffu + (bits >> 13 & 1) : 0x7fffffffu;
}
RP_FN rp_i32 rp_cvt_f32_to_i32(float x) { return x == x ? __float2int_rz(x) : 0; }
RP_FN rp_i64 rp_cvt_f32_to_i64(float x) { return x == x ? __float2ll_rz(x) : 0; }
RP_FN rp_i32 rp_cvt_f64_to_i32(double x) { return x == x ? __double2int_rz(x) : 0; }
RP_FN rp_i64 rp_cvt_f64_to_i64(double x) { return x == x ? __double2ll_rz(x) : 0; }

/* ---- Math ---- */

#define RP__MATH1(name, f32, f64)                                                                                      \
    RP_FN float rp_##name##_f32(float x) { return f32(x); }                                                            \
    RP_FN double rp_##name##_f64(double x) { return f64(x); }
#define RP__MATH2(name, f32, f64)                                                                                      \
    RP_FN float rp_##name##_f32(float x, float y) { return f32(x, y); }                                                \
    RP_FN double rp_##name##_f64(double x, double y) { return f64(x, y); }
RP__MATH1(exp, expf, exp)
RP__MATH1(exp2, exp2f, exp2)
RP__MATH1(expm1, expm1f, expm1)
RP__MATH1(log, logf, log)
RP__MATH1(log2, log2f, log2)
RP__MATH1(log10, log10f, log10)
RP__MATH1(log1p, log1pf, log1p)
RP__MATH1(sin, sinf, sin)
RP__MATH1(cos, cosf, cos)
RP__MATH1(tan, tanf, tan)
RP__MATH1(asin, asinf, asin)
RP__MATH1(acos, acosf, acos)
RP__MATH1(atan, atanf, atan)
RP__MATH1(sinh, sinhf, sinh)
RP__MATH1(cosh, coshf, cosh)
RP__MATH1(tanh, tanhf, tanh)
RP__MATH1(asinh, asinhf, asinh)
RP__MATH1(acosh, acoshf, acosh)
RP__MATH1(atanh, atanhf, atanh)
RP__MATH1(erf, erff, erf)
RP__MATH1(erfc, erfcf, erfc)
RP__MATH1(erfinv, erfinvf, erfinv)
RP__MATH1(lgamma, lgammaf, lgamma)
RP__MATH1(tgamma, tgammaf, tgamma)
RP__MATH1(sqrt, __fsqrt_rn, __dsqrt_rn)
RP__MATH1(rsqrt, rsqrtf, rsqrt)
RP__MATH1(cbrt, cbrtf, cbrt)
RP__MATH1(floor, floorf, floor)
RP__MATH1(ceil, ceilf, ceil)
RP__MATH1(trunc, truncf, trunc)
RP__MATH1(rint, rintf, rint)
RP__MATH1(round, roundf, round)
RP__MATH1(fabs, fabsf, fabs)
RP__MATH2(pow, powf, pow)
RP__MATH2(fmod, fmodf, fmod)
RP__MATH2(atan2, atan2f, atan2)
RP__MATH2(hypot, hypotf, hypot)
RP__MATH2(copysign, copysignf, copysign)
RP__MATH2(fmin, fminf, fmin)
RP__MATH2(fmax, fmaxf, fmax)
RP_FN float rp_fma_f32(float a, float b, float c) { return __fmaf_rn(a, b, c); }
RP_FN double rp_fma_f64(double a, double b, double c) { return __fma_rn(a, b, c); }
#if __CUDA_ARCH__ >= 800
RP_FN float rp_min_f32(float a, float b) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
RP_FN float rp_max_f32(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#else
RP_FN float rp_min_f32(float a, float b) { return a != a || a < b ? a : b; }
RP_FN float rp_max_f32(float a, float b) { return a != a || a > b ? a : b; }
#endif
RP_FN double rp_min_f64(double a, double b) { return a != a || a < b ? a : b; }
RP_FN double rp_max_f64(double a, double b) { return a != a || a > b ? a : b; }
RP_FN int rp_isnan_f32(float x) { return x != x; }
RP_FN int rp_isnan_f64(double x) { return x != x; }
RP_FN int rp_isinf_f32(float x) { return (rp_f32_bits(x) & 0x7fffffffu) == 0x7f800000u; }
RP_FN int rp_isinf_f64(double x) { return (rp_f64_bits(x) & 0x7fffffffffffffffull) == 0x7ff0000000000000ull; }
RP_FN int rp_isfinite_f32(float x) { return (rp_f32_bits(x) & 0x7f800000u) != 0x7f800000u; }
RP_FN int rp_isfinite_f64(double x) { return (rp_f64_bits(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }
RP_FN float rp_exp2_approx_f32(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
RP_FN float rp_recip_approx_f32(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
RP_FN float rp_rsqrt_approx_f32(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
RP_FN float rp_div_approx_f32(float a, float b) {
    float y;
    asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
RP_FN void rp_sincos_f32(float x, float *s, float *c) { sincosf(x, s, c); }
RP_FN void rp_sincos_f64(double x, double *s, double *c) { sincos(x, s, c); }

/* ---- Atomics ---- */

RP_FN float rp_atomic_add_f32(float *p, float v) { return atomicAdd(p, v); }
RP_FN double rp_atomic_add_f64(double *p, double v) { return atomicAdd(p, v); }
RP_FN rp_i32 rp_atomic_add_i32(rp_i32 *p, rp_i32 v) { return atomicAdd(p, v); }
RP_FN rp_u32 rp_atomic_add_u32(rp_u32 *p, rp_u32 v) { return atomicAdd(p, v); }
RP_FN rp_i64 rp_atomic_add_i64(rp_i64 *p, rp_i64 v) { return (rp_i64)atomicAdd((rp_u64 *)p, (rp_u64)v); }
RP_FN rp_u64 rp_atomic_add_u64(rp_u64 *p, rp_u64 v) { return atomicAdd(p, v); }
RP_FN rp_i32 rp_atomic_max_i32(rp_i32 *p, rp_i32 v) { return atomicMax(p, v); }
RP_FN rp_u32 rp_atomic_max_u32(rp_u32 *p, rp_u32 v) { return atomicMax(p, v); }
RP_FN rp_i64 rp_atomic_max_i64(rp_i64 *p, rp_i64 v) { return atomicMax(p, v); }
RP_FN rp_u64 rp_atomic_max_u64(rp_u64 *p, rp_u64 v) { return atomicMax(p, v); }
RP_FN rp_i32 rp_atomic_min_i32(rp_i32 *p, rp_i32 v) { return atomicMin(p, v); }
RP_FN rp_u32 rp_atomic_min_u32(rp_u32 *p, rp_u32 v) { return atomicMin(p, v); }
RP_FN rp_i64 rp_atomic_min_i64(rp_i64 *p, rp_i64 v) { return atomicMin(p, v); }
RP_FN rp_u64 rp_atomic_min_u64(rp_u64 *p, rp_u64 v) { return atomicMin(p, v); }
RP_FN rp_u32 rp_atomic_cas_u32(rp_u32 *p, rp_u32 compare, rp_u32 value) { return atomicCAS(p, compare, value); }
RP_FN rp_u64 rp_atomic_cas_u64(rp_u64 *p, rp_u64 compare, rp_u64 value) { return atomicCAS(p, compare, value); }
RP_FN rp_u32 rp_atomic_exch_u32(rp_u32 *p, rp_u32 v) { return atomicExch(p, v); }
RP_FN rp_u64 rp_atomic_exch_u64(rp_u64 *p, rp_u64 v) { return atomicExch(p, v); }
RP_FN rp_u32 rp_atomic_or_u32(rp_u32 *p, rp_u32 v) { return atomicOr(p, v); }
RP_FN rp_u32 rp_atomic_and_u32(rp_u32 *p, rp_u32 v) { return atomicAnd(p, v); }
RP_FN rp_u32 rp_atomic_xor_u32(rp_u32 *p, rp_u32 v) { return atomicXor(p, v); }
RP_FN rp_u32 rp_atomic_inc_u32(rp_u32 *p, rp_u32 last) { return atomicInc(p, last); }
#define RP__ATOMIC_CAS(name, type, bits_type, cas, to_bits, from_bits, expression)                                     \
    RP_FN type name(type *p, type v) {                                                                                 \
        bits_type seen = *(volatile bits_type *)p, assumed;                                                            \
        do {                                                                                                           \
            assumed = seen;                                                                                            \
            type old = from_bits(assumed);                                                                             \
            const bits_type next = to_bits(expression);                                                                \
            if (next == assumed) break;                                                                                \
            seen = cas((bits_type *)p, assumed, next);                                                                 \
        } while (seen != assumed);                                                                                     \
        return from_bits(seen);                                                                                        \
    }
RP__ATOMIC_CAS(rp_atomic_max_f32, float, rp_u32, atomicCAS, rp_f32_bits, rp_bits_f32, rp_max_f32(old, v))
RP__ATOMIC_CAS(rp_atomic_min_f32, float, rp_u32, atomicCAS, rp_f32_bits, rp_bits_f32, rp_min_f32(old, v))
RP__ATOMIC_CAS(rp_atomic_max_f64, double, rp_u64, atomicCAS, rp_f64_bits, rp_bits_f64, rp_max_f64(old, v))
RP__ATOMIC_CAS(rp_atomic_min_f64, double, rp_u64, atomicCAS, rp_f64_bits, rp_bits_f64, rp_min_f64(old, v))
#define RP__SAME(x) (x)
RP__ATOMIC_CAS(rp_atomic_add_f16, rp_u16, rp_u16, atomicCAS, RP__SAME, RP__SAME,
               rp_cvt_f32_to_f16(rp_cvt_f16_to_f32(old) + rp_cvt_f16_to_f32(v)))
RP__ATOMIC_CAS(rp_atomic_add_bf16, rp_u16, rp_u16, atomicCAS, RP__SAME, RP__SAME,
               rp_cvt_f32_to_bf16(rp_cvt_bf16_to_f32(old) + rp_cvt_bf16_to_f32(v)))
/* An atomic function whose result nobody reads becomes one of these by itself only where no fence is near. */
#define RP__RED(name, type, instruction, cast, constraint)                                                             \
    RP_FN void name(type *p, type v) {                                                                                 \
        asm volatile("red.global." instruction " [%0], %1;" ::"l"(p), constraint((cast)(v)) : "memory");               \
    }
RP__RED(rp_red_add_f32, float, "add.f32", float, "f")
RP__RED(rp_red_add_f64, double, "add.f64", double, "d")
RP__RED(rp_red_add_i32, rp_i32, "add.s32", rp_i32, "r")
RP__RED(rp_red_add_u32, rp_u32, "add.u32", rp_u32, "r")
RP__RED(rp_red_add_i64, rp_i64, "add.u64", rp_u64, "l")
RP__RED(rp_red_add_u64, rp_u64, "add.u64", rp_u64, "l")
#define RP__RED_BEST(T, type, ptx, constraint)                                                                         \
    RP__RED(rp_red_max_##T, type, "max." ptx, type, constraint)                                                        \
    RP__RED(rp_red_min_##T, type, "min." ptx, type, constraint)
RP__RED_BEST(i32, rp_i32, "s32", "r")
RP__RED_BEST(u32, rp_u32, "u32", "r")
RP__RED_BEST(i64, rp_i64, "s64", "l")
RP__RED_BEST(u64, rp_u64, "u64", "l")
RP_FN void rp_red_max_f32(float *p, float v) { rp_atomic_max_f32(p, v); }
RP_FN void rp_red_min_f32(float *p, float v) { rp_atomic_min_f32(p, v); }
RP_FN void rp_red_max_f64(double *p, double v) { rp_atomic_max_f64(p, v); }
RP_FN void rp_red_min_f64(double *p, double v) { rp_atomic_min_f64(p, v); }
#define RP__RED_HALF(name, instruction)                                                                                \
    RP_FN void name(rp_u16 *p, rp_u16 v) {                                                                             \
        const rp_u64 at = (rp_u64)p;                                                                                   \
        const rp_u32 two = at & 2 ? (rp_u32)v << 16 | 0x8000u : 0x80000000u | v;                                       \
        asm volatile("red.global.add.noftz." instruction " [%0], %1;" ::"l"(at & ~(rp_u64)3), "r"(two) : "memory");    \
    }
RP__RED_HALF(rp_red_add_f16, "f16x2")
#if __CUDA_ARCH__ >= 900
RP__RED_HALF(rp_red_add_bf16, "bf16x2")
#else
RP_FN void rp_red_add_bf16(rp_u16 *p, rp_u16 v) { rp_atomic_add_bf16(p, v); }
#endif

/* ---- Memory ---- */

RP_FN float rp_ld_nc_f32(const float *p) { return __ldg(p); }
RP_FN double rp_ld_nc_f64(const double *p) { return __ldg(p); }
RP_FN rp_i32 rp_ld_nc_i32(const rp_i32 *p) { return __ldg(p); }
RP_FN rp_u32 rp_ld_nc_u32(const rp_u32 *p) { return __ldg(p); }
RP_FN rp_i64 rp_ld_nc_i64(const rp_i64 *p) { return __ldg(p); }
RP_FN rp_u64 rp_ld_nc_u64(const rp_u64 *p) { return __ldg(p); }
RP_FN rp_u16 rp_ld_nc_u16(const rp_u16 *p) { return __ldg(p); }
RP_FN rp_u8 rp_ld_nc_u8(const rp_u8 *p) { return __ldg(p); }
RP_FN rp_f32x4 rp_ld_nc_v4_f32(const float *p) {
    rp_f32x4 v;
    asm("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}
RP_FN rp_u32x4 rp_ld_nc_v4_u32(const rp_u32 *p) {
    rp_u32x4 v;
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
RP_FN rp_f64x2 rp_ld_nc_v2_f64(const double *p) {
    rp_f64x2 v;
    asm("ld.global.nc.v2.f64 {%0, %1}, [%2];" : "=d"(v.x), "=d"(v.y) : "l"(p));
    return v;
}
#define RP__VECTOR(suffix, vector, type)                                                                               \
    RP_FN vector rp_ld_##suffix(const type *p) { return *(const vector *)p; }                                          \
    RP_FN void rp_st_##suffix(type *p, vector v) { *(vector *)p = v; }
RP__VECTOR(v2_f32, rp_f32x2, float)
RP__VECTOR(v4_f32, rp_f32x4, float)
RP__VECTOR(v2_f64, rp_f64x2, double)
RP__VECTOR(v4_i32, rp_i32x4, rp_i32)
RP__VECTOR(v2_u32, rp_u32x2, rp_u32)
RP__VECTOR(v4_u32, rp_u32x4, rp_u32)
RP__VECTOR(v2_i64, rp_i64x2, rp_i64)
RP__VECTOR(v2_u64, rp_u64x2, rp_u64)
/* Two lanes side by side exchange halves of what is side by side in memory. */
RP_FN void rp_st_v8(void *to, const void *from) {
    const rp_u32 here = __activemask();
    const int lane = (int)(threadIdx.x & 31), odd = lane & 1; /* blocks have whole warps along x */
    rp_u32 *p = (rp_u32 *)to;
    const rp_u64 other = __shfl_xor_sync(here, (rp_u64)p, 1);
    const int paired = (here >> (lane ^ 1) & 1) && other == (odd ? (rp_u64)(p - 8) : (rp_u64)(p + 8));
    rp_u32x4 low = *(const rp_u32x4 *)from, high = *((const rp_u32x4 *)from + 1), got;
    got.x = __shfl_xor_sync(here, odd ? low.x : high.x, 1);
    got.y = __shfl_xor_sync(here, odd ? low.y : high.y, 1);
    got.z = __shfl_xor_sync(here, odd ? low.z : high.z, 1);
    got.w = __shfl_xor_sync(here, odd ? low.w : high.w, 1);
    if (paired && odd)
        low = got;
    else if (paired)
        high = got;
    *(rp_u32x4 *)(paired && odd ? p - 4 : p) = low;
    *(rp_u32x4 *)(paired && !odd ? p + 8 : p + 4) = high;
}
RP_FN void rp_prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
RP_FN rp_u32 rp__shared_address(const void *p) { return (rp_u32)__cvta_generic_to_shared(p); }
/* A block whose shared memory others read must not end before they have: a barrier stands behind the last read. */
#if __CUDA_ARCH__ >= 900
RP_FN void rp_cluster_barrier(int n) {
    (void)n;
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* A release would wait until all that the block has stored is in the second level cache. What has been read is in registers: used. */
RP_FN void rp_cluster_done(int n) {
    (void)n;
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#define RP__CLUSTER_READ(T, type, letter, suffix)                                                                      \
    RP_FN type rp_cluster_read_##T(const type *p, int rank, int n) {                                                   \
        type v;                                                                                                        \
        rp_u32 at;                                                                                                     \
        (void)n;                                                                                                       \
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(rp__shared_address(p)), "r"(rank));       \
        asm volatile("ld.shared::cluster." suffix " %0, [%1];" : letter(v) : "r"(at) : "memory");                      \
        return v;                                                                                                      \
    }
#define RP__CLUSTER_WRITE(T, type, letter)                                                                             \
    RP_FN void rp_cluster_write_##T(type *p, type v, int rank, int n) {                                                \
        rp_u32 at;                                                                                                     \
        (void)n;                                                                                                       \
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(rp__shared_address(p)), "r"(rank));       \
        asm volatile("st.shared::cluster." #T " [%0], %1;" ::"r"(at), letter(v) : "memory");                           \
    }
RP_FN rp_f32x4 rp_cluster_read_v4_f32(const float *p, int rank, int n) {
    rp_f32x4 v;
    rp_u32 at;
    (void)n;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(rp__shared_address(p)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
#else /* no kernel for these devices has more blocks than one in a cluster */
RP_FN rp_f32x4 rp_cluster_read_v4_f32(const float *p, int rank, int n) {
    (void)rank, (void)n;
    return *(const rp_f32x4 *)p;
}
RP_FN void rp_cluster_barrier(int n) {
    (void)n;
    __syncthreads();
}
RP_FN void rp_cluster_done(int n) { rp_cluster_barrier(n); }
#define RP__CLUSTER_READ(T, type, letter, suffix)                                                                      \
    RP_FN type rp_cluster_read_##T(const type *p, int rank, int n) {                                                   \
        (void)rank, (void)n;                                                                                           \
        return *p;                                                                                                     \
    }
#define RP__CLUSTER_WRITE(T, type, letter)                                                                             \
    RP_FN void rp_cluster_write_##T(type *p, type v, int rank, int n) {                                                \
        (void)rank, (void)n;                                                                                           \
        *p = v;                                                                                                        \
    }
#endif
RP__CLUSTER_WRITE(f32, float, "f")
RP__CLUSTER_WRITE(f64, double, "d")
RP__CLUSTER_READ(f32, float, "=f", "f32")
RP__CLUSTER_READ(f64, double, "=d", "f64")
RP__CLUSTER_READ(i32, rp_i32, "=r", "s32")
RP__CLUSTER_READ(i64, rp_i64, "=l", "s64")
RP_FN const void *rp_opaque(const void *p) {
    asm("" : "+l"(p));
    return p;
}
#if __CUDA_ARCH__ >= 800
RP_FN void rp_cp_async_4(void *shared, const void *global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(rp__shared_address(shared)), "l"(global) : "memory");
}
RP_FN void rp_cp_async_8(void *shared, const void *global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(rp__shared_address(shared)), "l"(global) : "memory");
}
RP_FN void rp_cp_async_16(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(rp__shared_address(shared)), "l"(global) : "memory");
}
RP_FN void rp_cp_async_16_zfill(void *shared, const void *global, rp_u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(rp__shared_address(shared)), "l"(global),
                 "r"(bytes)
                 : "memory");
}
RP_FN void rp_cp_async_4_zfill(void *shared, const void *global, rp_u32 bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(rp__shared_address(shared)), "l"(global),
                 "r"(bytes)
                 : "memory");
}
RP_FN void rp_cp_async_8_zfill(void *shared, const void *global, rp_u32 bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(rp__shared_address(shared)), "l"(global),
                 "r"(bytes)
                 : "memory");
}
RP_FN void rp_cp_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
RP_FN void rp_cp_async_wait(int n) {
    switch (n) { /* the operand is an immediate; a constant n leaves one case */
    case 7: asm volatile("cp.async.wait_group 7;" ::: "memory"); break;
    case 6: asm volatile("cp.async.wait_group 6;" ::: "memory"); break;
    case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
    case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
    case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    default: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
    }
}
#else /* copies that are there at once */
RP_FN void rp_cp_async_4(void *shared, const void *global) { *(rp_u32 *)shared = *(const rp_u32 *)global; }
RP_FN void rp_cp_async_8(void *shared, const void *global) { *(uint2 *)shared = *(const uint2 *)global; }
RP_FN void rp_cp_async_16(void *shared, const void *global) { *(uint4 *)shared = *(const uint4 *)global; }
RP_FN void rp__copy_zfill(void *shared, const void *global, rp_u32 bytes, rp_u32 all) {
    for (rp_u32 k = 0; k < all; k++)
        ((unsigned char *)shared)[k] = k < bytes ? ((const unsigned char *)global)[k] : (unsigned char)0;
}
RP_FN void rp_cp_async_16_zfill(void *shared, const void *global, rp_u32 bytes) {
    rp__copy_zfill(shared, global, bytes, 16);
}
RP_FN void rp_cp_async_4_zfill(void *shared, const void *global, rp_u32 bytes) {
    rp__copy_zfill(shared, global, bytes, 4);
}
RP_FN void rp_cp_async_8_zfill(void *shared, const void *global, rp_u32 bytes) {
    rp__copy_zfill(shared, global, bytes, 8);
}
RP_FN void rp_cp_async_commit(void) {}
RP_FN void rp_cp_async_wait(int) {}
#endif

/* ---- Tensor cores ---- */

#define RP__MMA(name, instruction)                                                                                     \
    RP_FN void name(float *d, const rp_u32 *a, const rp_u32 *b) {                                                      \
        asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                    \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                              \
    }
RP__MMA(rp_mma_m16n8k8_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
RP__MMA(rp_mma_m16n8k16_f16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
RP__MMA(rp_mma_m16n8k16_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
RP_FN void rp_mma_m16n8k32_i8(rp_i32 *d, const rp_u32 *a, const rp_u32 *b) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#define RP__LDMATRIX(suffix, modifier)                                                                                 \
    RP_FN void rp_ldmatrix_x2##suffix(rp_u32 *r, const void *row) {                                                    \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" modifier ".shared.b16 {%0, %1}, [%2];"                            \
                     : "=r"(r[0]), "=r"(r[1])                                                                          \
                     : "r"(rp__shared_address(row))                                                                    \
                     : "memory");                                                                                      \
    }                                                                                                                  \
    RP_FN void rp_ldmatrix_x4##suffix(rp_u32 *r, const void *row) {                                                    \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" modifier ".shared.b16 {%0, %1, %2, %3}, [%4];"                    \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                  \
                     : "r"(rp__shared_address(row))                                                                    \
                     : "memory");                                                                                      \
    }
RP__LDMATRIX(, "")
RP__LDMATRIX(_trans, ".trans")
#if __CUDA_ARCH__ >= 900
#define RP__STMATRIX(suffix, modifier)                                                                                 \
    RP_FN void rp_stmatrix_x4##suffix(void *row, const rp_u32 *r) {                                                    \
        asm volatile("stmatrix.sync.aligned.m8n8.x4" modifier                                                          \
                     ".shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(rp__shared_address(row)),                             \
                     "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])                                                        \
                     : "memory");                                                                                      \
    }
RP__STMATRIX(, "")
RP__STMATRIX(_trans, ".trans")
#else
RP_FN void rp_stmatrix_x4(void *row, const rp_u32 *r) {
    const int lane = (int)(threadIdx.x & 31); /* blocks have whole warps along x */
    _Pragma("unroll") for (int i = 0; i < 4; i++) {
        rp_u32 *to = (rp_u32 *)__shfl_sync(0xffffffffu, (rp_u64)row, 8 * i + lane / 4);
        to[lane % 4] = r[i];
    }
    __syncwarp();
}
RP_FN void rp_stmatrix_x4_trans(void *row, const rp_u32 *r) {
    const int lane = (int)(threadIdx.x & 31);
    _Pragma("unroll") for (int i = 0; i < 8; i++) {
        rp_u16 *to = (rp_u16 *)__shfl_sync(0xffffffffu, (rp_u64)row, i / 2 * 8 + lane % 4 * 2 + i % 2);
        to[lane / 4] = (rp_u16)(r[i / 2] >> (i % 2 * 16));
    }
    __syncwarp();
}
#endif

/* ---- Tensor cores, a warpgroup ---- */

#ifdef RP_PRELUDE_WGMMA
RP_FN rp_u64 rp_wgmma_desc(const void *p, rp_u32 leading, rp_u32 stride, int swizzle) {
    const rp_u64 mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    return (rp_u64)((rp__shared_address(p) & 0x3ffffu) >> 4) | (rp_u64)(leading >> 4) << 16 |
           (rp_u64)(stride >> 4) << 32 | mode << 62;
}
RP_FN void rp_wgmma_hold(float *d, int n) {
    _Pragma("unroll") for (int i = 0; i < n; i++) asm volatile("" : "+f"(d[i])::"memory");
}
#if defined __CUDA_ARCH_FEAT_SM90_ALL
RP_FN void rp_fence_proxy_async(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
RP_FN void rp_wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
RP_FN void rp_wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
RP_FN void rp_wgmma_wait(int n) {
    switch (n) { /* the operand is an immediate; a constant n leaves one case */
    case 7: asm volatile("wgmma.wait_group.sync.aligned 7;" ::: "memory"); break;
    case 6: asm volatile("wgmma.wait_group.sync.aligned 6;" ::: "memory"); break;
    case 5: asm volatile("wgmma.wait_group.sync.aligned 5;" ::: "memory"); break;
    case 4: asm volatile("wgmma.wait_group.sync.aligned 4;" ::: "memory"); break;
    case 3: asm volatile("wgmma.wait_group.sync.aligned 3;" ::: "memory"); break;
    case 2: asm volatile("wgmma.wait_group.sync.aligned 2;" ::: "memory"); break;
    case 1: asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); break;
    default: asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); break;
    }
}
RP_FN void rp_mbarrier_init(rp_u64 *p, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(rp__shared_address(p)), "r"(arrivals) : "memory");
}
RP_FN int rp_elect(void) { /* the compiler knows that operands behind it are one thread's */
    int one;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(one));
    return one;
}
RP_FN void rp_mbarrier_ready(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
RP_FN void rp_mbarrier_expect(rp_u64 *p, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(rp__shared_address(p)), "r"(bytes)
                 : "memory");
}
RP_FN void rp_bulk_prefetch(const rp_u64 *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
RP_FN void rp_bulk_tile(void *to, const rp_u64 *map, rp_u64 *barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5}], [%2];" ::"r"(rp__shared_address(to)),
                 "l"(map), "r"(rp__shared_address(barrier)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
RP_FN void rp_bulk_pixels(void *to, const rp_u64 *map, rp_u64 *barrier, int spatial, int c, const int *at, int n,
                          const int *tap) {
    const rp_u32 shared = rp__shared_address(to), here = rp__shared_address(barrier);
    if (spatial == 1)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, "
                     "{%3, %4, %5}], [%2], {%6};" ::"r"(shared),
                     "l"(map), "r"(here), "r"(c), "r"(at[0]), "r"(n), "h"((rp_u16)tap[0])
                     : "memory");
    else if (spatial == 2)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, "
                     "{%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared),
                     "l"(map), "r"(here), "r"(c), "r"(at[1]), "r"(at[0]), "r"(n), "h"((rp_u16)tap[1]),
                     "h"((rp_u16)tap[0])
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, "
                     "{%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(shared),
                     "l"(map), "r"(here), "r"(c), "r"(at[2]), "r"(at[1]), "r"(at[0]), "r"(n), "h"((rp_u16)tap[2]),
                     "h"((rp_u16)tap[1]), "h"((rp_u16)tap[0])
                     : "memory");
}
RP_FN void rp_mbarrier_arrive(rp_u64 *p) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(rp__shared_address(p)) : "memory");
}
RP_FN void rp_mbarrier_arrive_copied(rp_u64 *p) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(rp__shared_address(p)) : "memory");
}
RP_FN void rp_mbarrier_wait(rp_u64 *p, int parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(
            rp__shared_address(p)),
        "r"(parity)
        : "memory");
}
#define RP__REGISTERS(way, n)                                                                                          \
    case n: asm volatile("setmaxnreg." way ".sync.aligned.u32 " #n ";"); break
RP_FN void rp_registers_give(int n) {
    switch (n) {
        RP__REGISTERS("dec", 24);
        RP__REGISTERS("dec", 32);
        RP__REGISTERS("dec", 40);
    }
}
RP_FN void rp_registers_take(int n) {
    switch (n) {
        RP__REGISTERS("inc", 104);
        RP__REGISTERS("inc", 112);
        RP__REGISTERS("inc", 120);
        RP__REGISTERS("inc", 128);
        RP__REGISTERS("inc", 136);
        RP__REGISTERS("inc", 144);
        RP__REGISTERS("inc", 152);
        RP__REGISTERS("inc", 160);
        RP__REGISTERS("inc", 168);
        RP__REGISTERS("inc", 176);
        RP__REGISTERS("inc", 184);
        RP__REGISTERS("inc", 192);
        RP__REGISTERS("inc", 200);
        RP__REGISTERS("inc", 208);
        RP__REGISTERS("inc", 216);
        RP__REGISTERS("inc", 224);
        RP__REGISTERS("inc", 232);
        RP__REGISTERS("inc", 240);
    }
}
/* Names of so many accumulators, and the operands that they are. */
#define RP__WGMMA_R4 "%0, %1, %2, %3"
#define RP__WGMMA_R8 RP__WGMMA_R4 ", %4, %5, %6, %7"
#define RP__WGMMA_R16 RP__WGMMA_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define RP__WGMMA_R24 RP__WGMMA_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define RP__WGMMA_R32 RP__WGMMA_R24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define RP__WGMMA_R40 RP__WGMMA_R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define RP__WGMMA_R48 RP__WGMMA_R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define RP__WGMMA_R64 RP__WGMMA_R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define RP__WGMMA_R80 RP__WGMMA_R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define RP__WGMMA_R88 RP__WGMMA_R80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define RP__WGMMA_R96 RP__WGMMA_R80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define RP__WGMMA_R128                                                                                                 \
    RP__WGMMA_R96                                                                                                      \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define RP__WGMMA_D4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define RP__WGMMA_D8 RP__WGMMA_D4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define RP__WGMMA_D16                                                                                                  \
    RP__WGMMA_D8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define RP__WGMMA_D24                                                                                                  \
    RP__WGMMA_D16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),          \
        "+f"(d[23])
#define RP__WGMMA_D32                                                                                                  \
    RP__WGMMA_D24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),          \
        "+f"(d[31])
#define RP__WGMMA_D40                                                                                                  \
    RP__WGMMA_D32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]),          \
        "+f"(d[39])
#define RP__WGMMA_D48                                                                                                  \
    RP__WGMMA_D40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]),          \
        "+f"(d[47])
#define RP__WGMMA_D64                                                                                                  \
    RP__WGMMA_D48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),          \
        "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),        \
        "+f"(d[63])
#define RP__WGMMA_D80                                                                                                  \
    RP__WGMMA_D64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]),          \
        "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]),        \
        "+f"(d[79])
#define RP__WGMMA_D88                                                                                                  \
    RP__WGMMA_D80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]),          \
        "+f"(d[87])
#define RP__WGMMA_D96                                                                                                  \
    RP__WGMMA_D80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]),          \
        "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]),        \
        "+f"(d[95])
#define RP__WGMMA_D128                                                                                                 \
    RP__WGMMA_D96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]),       \
        "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),              \
        "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]),              \
        "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]),              \
        "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
#define RP__WGMMA_ASM(n, k, type, a, order, last, ...)                                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" last ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n                \
                 "k16.f32." type "." type " {" RP__WGMMA_R##k "}, " a ", p, 1, 1, " order ";\n}"                       \
                 : RP__WGMMA_D##k                                                                                      \
                 : __VA_ARGS__)
#define RP__WGMMA_TF32(n, k, k1, k2, k3, k4, k5)                                                                       \
    RP_FN void rp_wgmma_n##n##_tf32(float *d, rp_u64 a, rp_u64 b, int accumulate) {                                    \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #k2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n             \
                     "k8.f32.tf32.tf32 {" RP__WGMMA_R##k "}, %" #k ", %" #k1 ", p, 1, 1;\n}"                           \
                     : RP__WGMMA_D##k                                                                                  \
                     : "l"(a), "l"(b), "r"(accumulate));                                                               \
    }                                                                                                                  \
    RP_FN void rp_wgmma_n##n##_tf32_ra(float *d, const rp_u32 *a, rp_u64 b, int accumulate) {                          \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #k5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n             \
                     "k8.f32.tf32.tf32 {" RP__WGMMA_R##k "}, {%" #k ", %" #k1 ", %" #k2 ", %" #k3 "}, %" #k4           \
                                                         ", p, 1, 1;\n}"                                               \
                     : RP__WGMMA_D##k                                                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                           \
    }
/* k: accumulators a thread, the number of the first operand behind them; k1 to k5: the next ones. Constants leave one case. */
#define RP__WGMMA(n, k, k1, k2, k3, k4, k5, name, type)                                                                \
    RP_FN void rp_wgmma_n##n##_##name(float *d, rp_u64 a, rp_u64 b, int accumulate, int across_a, int across_b) {      \
        if (across_a && across_b)                                                                                      \
            RP__WGMMA_ASM(n, k, type, "%" #k ", %" #k1, "1, 1", #k2, "l"(a), "l"(b), "r"(accumulate));                 \
        else if (across_a)                                                                                             \
            RP__WGMMA_ASM(n, k, type, "%" #k ", %" #k1, "1, 0", #k2, "l"(a), "l"(b), "r"(accumulate));                 \
        else if (across_b)                                                                                             \
            RP__WGMMA_ASM(n, k, type, "%" #k ", %" #k1, "0, 1", #k2, "l"(a), "l"(b), "r"(accumulate));                 \
        else                                                                                                           \
            RP__WGMMA_ASM(n, k, type, "%" #k ", %" #k1, "0, 0", #k2, "l"(a), "l"(b), "r"(accumulate));                 \
    }                                                                                                                  \
    RP_FN void rp_wgmma_n##n##_##name##_ra(float *d, const rp_u32 *a, rp_u64 b, int accumulate, int across_b) {        \
        if (across_b)                                                                                                  \
            RP__WGMMA_ASM(n, k, type, "{%" #k ", %" #k1 ", %" #k2 ", %" #k3 "}, %" #k4, "1", #k5, "r"(a[0]),           \
                          "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                                   \
        else                                                                                                           \
            RP__WGMMA_ASM(n, k, type, "{%" #k ", %" #k1 ", %" #k2 ", %" #k3 "}, %" #k4, "0", #k5, "r"(a[0]),           \
                          "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                                   \
    }
#else /* no text for these devices calls them */
RP_FN void rp_fence_proxy_async(void) { __trap(); }
RP_FN void rp_wgmma_fence(void) { __trap(); }
RP_FN void rp_wgmma_commit(void) { __trap(); }
RP_FN void rp_wgmma_wait(int) { __trap(); }
RP_FN void rp_mbarrier_init(rp_u64 *, int) { __trap(); }
RP_FN int rp_elect(void) { return 0; }
RP_FN void rp_mbarrier_ready(void) { __trap(); }
RP_FN void rp_mbarrier_expect(rp_u64 *, int) { __trap(); }
RP_FN void rp_bulk_prefetch(const rp_u64 *) { __trap(); }
RP_FN void rp_bulk_tile(void *, const rp_u64 *, rp_u64 *, int, int, int) { __trap(); }
RP_FN void rp_bulk_pixels(void *, const rp_u64 *, rp_u64 *, int, int, const int *, int, const int *) { __trap(); }
RP_FN void rp_mbarrier_arrive(rp_u64 *) { __trap(); }
RP_FN void rp_mbarrier_arrive_copied(rp_u64 *) { __trap(); }
RP_FN void rp_mbarrier_wait(rp_u64 *, int) { __trap(); }
RP_FN void rp_registers_give(int) { __trap(); }
RP_FN void rp_registers_take(int) { __trap(); }
#define RP__WGMMA(n, k, k1, k2, k3, k4, k5, name, type)                                                                \
    RP_FN void rp_wgmma_n##n##_##name(float *, rp_u64, rp_u64, int, int, int) { __trap(); }                            \
    RP_FN void rp_wgmma_n##n##_##name##_ra(float *, const rp_u32 *, rp_u64, int, int) { __trap(); }
#define RP__WGMMA_TF32(n, k, k1, k2, k3, k4, k5)                                                                       \
    RP_FN void rp_wgmma_n##n##_tf32(float *, rp_u64, rp_u64, int) { __trap(); }                                        \
    RP_FN void rp_wgmma_n##n##_tf32_ra(float *, const rp_u32 *, rp_u64, int) { __trap(); }
#endif
#define RP__WGMMAS(n, k, k1, k2, k3, k4, k5)                                                                           \
    RP__WGMMA(n, k, k1, k2, k3, k4, k5, f16, "f16")                                                                    \
    RP__WGMMA(n, k, k1, k2, k3, k4, k5, bf16, "bf16")
RP__WGMMAS(8, 4, 5, 6, 7, 8, 9)
RP__WGMMAS(16, 8, 9, 10, 11, 12, 13)
RP__WGMMAS(32, 16, 17, 18, 19, 20, 21)
RP__WGMMAS(48, 24, 25, 26, 27, 28, 29)
RP__WGMMAS(64, 32, 33, 34, 35, 36, 37)
RP__WGMMAS(80, 40, 41, 42, 43, 44, 45)
RP__WGMMAS(96, 48, 49, 50, 51, 52, 53)
RP__WGMMAS(128, 64, 65, 66, 67, 68, 69)
RP__WGMMAS(160, 80, 81, 82, 83, 84, 85)
RP__WGMMAS(176, 88, 89, 90, 91, 92, 93)
RP__WGMMAS(192, 96, 97, 98, 99, 100, 101)
RP__WGMMAS(256, 128, 129, 130, 131, 132, 133)
RP__WGMMA_TF32(8, 4, 5, 6, 7, 8, 9)
RP__WGMMA_TF32(32, 16, 17, 18, 19, 20, 21)
RP__WGMMA_TF32(64, 32, 33, 34, 35, 36, 37)
RP__WGMMA_TF32(96, 48, 49, 50, 51, 52, 53)
RP__WGMMA_TF32(128, 64, 65, 66, 67, 68, 69)
RP__WGMMA_TF32(192, 96, 97, 98, 99, 100, 101)
RP__WGMMA_TF32(256, 128, 129, 130, 131, 132, 133)
#endif
