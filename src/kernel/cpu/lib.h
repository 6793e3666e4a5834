/* The CPU's library ops, one file a family (lib_<family>.c) behind the table in library.c. Each family has a bind, which
   fills one launch record from operands, and where it needs memory a workspace function. Words hold addresses first. */
#ifndef RP_KERNEL_CPU_LIB_H
#define RP_KERNEL_CPU_LIB_H

#include "device/device.h"
#include "kernel/library.h"

unsigned rp__cpu_factor_cost(struct rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                             const rp__library_call *call, rp__order order, unsigned k); /* of rp__library */
rp__library_bind rp__cpu_matmul_bind, rp__cpu_matmul_dots_bind, rp__cpu_conv_bind, rp__cpu_conv_dots_bind,
    rp__cpu_conv_whole_bind, rp__cpu_topk_bind, rp__cpu_nonzero_bind, rp__cpu_multinomial_bind, rp__cpu_scatter_bind,
    rp__cpu_weighted_scatter_bind, rp__cpu_count_bins_bind, rp__cpu_choose_bind, rp__cpu_ctc_bind,
    rp__cpu_attention_bind, rp__cpu_attention_backward_bind, rp__cpu_attention_place_bind, rp__cpu_attention_keep_bind,
    rp__cpu_recur_bind, rp__cpu_steps_bind;
rp__library_workspace rp__cpu_topk_workspace, rp__cpu_multinomial_workspace, rp__cpu_attention_workspace,
    rp__cpu_recur_workspace;
int64_t rp__cpu_recurs(struct rp__device *d, rp__recurrent_cell cell, rp_dtype dtype,
                       int64_t units); /* of rp__library */

/* Slots and words of a convolution (gemm.h) but for tiles, and what follows from them; none of a result without elements. */
rp_status rp__cpu_conv_words(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                             unsigned flags, rp__launch_buffer *buffer, rp__launch *out);

/* That of the tables name_baseline, name_avx2 and name_avx512 whose instruction set is in use (kernel/cpu/tiles.h). */
#ifdef RP_ISA_BASELINE_ONLY
#define RP__ISA_TABLE(name) (&name##_baseline)
#else
#define RP__ISA_TABLE(name)                                                                                            \
    (rp__tiles_current() == &rp__tiles_avx512 ? &name##_avx512                                                         \
     : rp__tiles_current() == &rp__tiles_avx2 ? &name##_avx2                                                           \
                                              : &name##_baseline)
#endif

/* Items a slice, for items of `cost` cycles: a slice is worth handing to another thread. */
static inline int64_t rp__cpu_grain(int64_t items, double cost) {
    double grain = (1 << 17) / (cost > 1 ? cost : 1);
    return grain < 1 ? 1 : grain < (double)items ? (int64_t)grain : items;
}

#endif
